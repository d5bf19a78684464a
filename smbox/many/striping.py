"""Striping: where the parts of a striped region go and lie, and the sum of their versions.

A name's node is found by rendezvous hashing (Thaler and Ravishankar 1998) over the node ids:
neither the order nor the spelling of addresses matters, and all clients that connect to the
same nodes agree without asking anybody.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from smbox import dtypes
from smbox.address import GlobalAddress
from smbox.deadline import look_s
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    PeerLostError,
    RegionFreedError,
    RequestTimeoutError,
    SmboxError,
)
from smbox.head import Head
from smbox.many.node import Nodes
from smbox.paths.work import Piece, RegionInfo
from smbox.work import Work

VERSION_TURN_S: Final = 0.02
"""How long a wait for a version looks at one part before it looks at the next."""

NO_MEMORY = b""
"""Stands for the memory of a striped region, which lies in several."""


def home_of(name: str, ids: Collection[int]) -> int:
    """Return the id of the node that a name belongs to.

    Another node in the set takes over only the names that it then wins.

    Args:
        name: of a region, counter, barrier, lock or run.
        ids: of all nodes; at least one.
    """
    return max(ids, key=lambda node: (_weight(node, name), node))


def _weight(node: int, name: str) -> bytes:
    return blake2b(f"{node}:{name}".encode(errors="surrogatepass"), digest_size=8).digest()


def cut_rows(rows: int, count: int) -> list[tuple[int, int]]:
    """Cut rows into at most ``count`` consecutive parts, as even as whole rows allow.

    Returns:
        First and limit row of each part; none is empty, but for the only part of no rows.
    """
    parts = max(1, min(rows, count))
    each, longer = divmod(rows, parts)
    firsts = [part * each + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(firsts))


@dataclass(frozen=True, slots=True, kw_only=True)
class StripedInfo(RegionInfo):
    """What a client knows about a striped region; the address is that of its first part.

    Args:
        parts: by row, at least one: regions of one node each.
        head: its head; None for one without a name of its own, an optimizer's state.
    """

    parts: tuple[RegionInfo, ...]
    head: RegionInfo | None = None

    def pieces(self, first: int, limit: int) -> list[Piece]:
        """Cut bytes by the nodes that they lie on; of no bytes, one piece with none."""
        found, offset = [], 0
        for part in self.parts:
            begin, end = max(first - offset, 0), min(limit - offset, part.nbytes)
            if begin < end:
                found.append(Piece(part, begin, end, offset))
            offset += part.nbytes
        return found or [Piece(self.parts[0], 0, 0, 0)]


def striped_info(head_info: RegionInfo, head: Head) -> StripedInfo:
    """Describe the region that a head names, without a look at its parts."""
    dtype = dtypes.by_name(head.dtype)
    parts = tuple(
        RegionInfo(
            address=GlobalAddress(part.address),
            name=head.part_name,
            dtype=dtype,
            shape=(part.rows, *head.shape[1:]) if head.shape else (),
            consistency=head.consistency,
            node_uuid=part.uuid,
        )
        for part in head.parts
    )
    return StripedInfo(
        address=parts[0].address,
        name=head_info.name,
        dtype=dtype,
        shape=head.shape,
        consistency=head.consistency,
        node_uuid=NO_MEMORY,
        parts=parts,
        head=head_info,
    )


def opened(
    nodes: Nodes, head_info: RegionInfo, head: Head, deadline_s: float | None
) -> StripedInfo:
    """Find the parts that a head names; without a deadline each node has the box's timeout.

    Raises:
        ConfigError: a part lies on a node that this box does not know.
        PeerLostError: another memory is there now: the part is gone for good; or this box
            is of an older memory than the part: connect again.
        RegionFreedError: a part was freed.
    """
    info = striped_info(head_info, head)
    for part in info.parts:
        _check_there(nodes, info.name, part, deadline_s)
    return info


def _check_there(nodes: Nodes, name: str, part: RegionInfo, deadline_s: float | None) -> None:
    node = nodes.get(part.address.node)
    if node is None:
        raise ConfigError(
            "a part of this region lies on a node that this box does not know: connect to"
            " all nodes",
            region=name,
            node=part.address.node,
            known=sorted(nodes),
        )
    with node.named():
        if node.info.uuid != part.node_uuid:
            node.control.stats(node.answer_s(deadline_s))  # raises if it is we who are of old
            raise PeerLostError(
                "the memory that a part of this region lay in is gone: another one answers"
                " there; free the region (smbox rm) and create it again",
                region=name,
                outcome="none",
            )
        try:
            node.control.locate(part.address, node.answer_s(deadline_s))
        except (AddressRangeError, RegionFreedError) as error:
            raise RegionFreedError(
                "a part of this region was freed: free the region (smbox rm) and create it"
                " again",
                region=name,
            ) from error


def versions_of(nodes: Nodes, info: StripedInfo, timeout_s: float | None = None) -> list[int]:
    """Return the versions of the parts; each node has the time, None: the box's."""
    found = []
    for part in info.parts:
        node = nodes[part.address.node]
        with node.named():
            found.append(node.paths.data(part).version(part, timeout_s))
    return found


class VersionSum(Work):
    """A wait until the versions add up; see Work.

    Attributes:
        found: the sum at the last look.

    Args:
        nodes: all, by id.
        info: the region.
        wanted: version.
    """

    def __init__(self, nodes: Nodes, info: StripedInfo, wanted: int) -> None:
        self.found = 0
        self._nodes = nodes
        self._info = info
        self._wanted = wanted
        self._waits: dict[int, Work] = {}
        self._silent: dict[str, object] = {}

    def advance(self, deadline_s: float) -> bool:
        """Look at the versions, at each change of a part, until they add up."""
        while True:
            try:
                versions = versions_of(self._nodes, self._info, look_s(deadline_s))
            except RequestTimeoutError as error:  # the wait is over, and changed nothing
                self._silent = {fact: error.facts[fact] for fact in ("node", "node_address")}
                return False
            self.found = sum(versions)
            if self.found >= self._wanted:
                self.cancel()
                return True
            if not self._any_moves(versions, deadline_s):
                return False

    def facts(self) -> dict[str, object]:
        """Tell how far the region is, and which node did not answer."""
        return {"version": self.found, "wanted": self._wanted} | self._silent

    def cancel(self) -> None:
        """Wait no more."""
        while self._waits:
            self._waits.popitem()[1].cancel()

    def _any_moves(self, versions: list[int], deadline_s: float) -> bool:
        """Wait for the next version of any part; False at the deadline."""
        for index, part in enumerate(self._info.parts):
            if index not in self._waits:
                data = self._nodes[part.address.node].paths.data(part)
                self._waits[index] = data.wait_version(part, versions[index] + 1)
        while True:
            for index, part in enumerate(self._info.parts):
                turn_s = min(deadline_s, time.monotonic() + VERSION_TURN_S)
                try:
                    has_moved = self._waits[index].advance(turn_s)
                except SmboxError as error:
                    self._nodes[part.address.node].name(error)
                    raise
                if has_moved:
                    del self._waits[index]
                    return True
            if time.monotonic() >= deadline_s:
                return False
