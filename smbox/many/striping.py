"""Nodes of an address space, the node of a name, and where the parts of a striped region lie.

The node of a name is found by rendezvous hashing (Thaler and Ravishankar 1998) over the node
ids. It does not depend on the order or spelling of addresses, so all clients that connect to
the same nodes agree without communication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from itertools import pairwise

from smbox import directory, dtypes
from smbox.address import GlobalAddress
from smbox.box import Box
from smbox.client.transfer import Call
from smbox.deadline import request_timeout_s
from smbox.errors import (
    ConfigError,
    PeerLostError,
    RegionFreedError,
    SmboxError,
)
from smbox.head import Head
from smbox.memory.layout import RegionKind
from smbox.paths.control import ControlPath
from smbox.paths.pair import PathPair
from smbox.paths.requests import Piece, RegionInfo
from smbox.paths.threads import UNREPORTED_MAX

NO_MEMORY = b""
"""Stands for the memory uuid of a striped region, which lies in several memories."""


class Node:
    """One memory node of an address space. A pickled copy connects by itself.

    Attributes:
        id: the node's id, the upper bits of its addresses.
        paths: paths to the node.
        box: a box on this node alone.
        unreported: errors of changes that could not be started, and that no call has raised.

    Args:
        paths: paths to the node.
        node_id: id from the handshake.
    """

    def __init__(self, paths: PathPair, node_id: int) -> None:
        self.paths = paths
        self.id = node_id
        self.box = Box(paths)
        self.unreported: deque[SmboxError] = deque(maxlen=UNREPORTED_MAX)

    @property
    def address(self) -> str:
        """Address that the client connected to."""
        return self.paths.config.address

    @property
    def control(self) -> ControlPath:
        """The control path."""
        return self.paths.control()

    def find(self, name: str, deadline_s: float | None) -> RegionInfo:
        """Return an array by name, which may be a head, without waiting for its creation.

        Raises:
            RegionNotFoundError: no array has this name.
        """
        with self.named():
            return self.control.find(name, RegionKind.ARRAY, self.paths.request_s(deadline_s))

    def head_of(self, info: RegionInfo, deadline_s: float | None = None) -> Head | None:
        """Return the head of a striped region if ``info`` is one, else None."""
        with self.named():
            return directory.head_of(self.paths, info, deadline_s)

    def was_freed(self, info: RegionInfo, deadline_s: float | None) -> bool:
        """Return whether a region of this node was freed."""
        try:
            self.control.locate(info.address, self.paths.request_s(deadline_s))
        except RegionFreedError:
            return True
        return False

    def free(self, info: RegionInfo, deadline_s: float | None = None) -> None:
        """Free a region of this node; see ``Box.free``."""
        self.end_free(self.begin_free(info), deadline_s)

    def begin_free(self, info: RegionInfo) -> Call:
        """Send the request to free a region of this node; see ``ControlPath.begin_free``."""
        with self.named():
            return self.paths.control(info).begin_free(info.address)

    def end_free(self, call: Call, deadline_s: float | None) -> None:
        """Wait until a region is freed; see ``ControlPath.end_free``."""
        with self.named():
            self.control.end_free(call, self.paths.request_s(deadline_s))

    @contextmanager
    def named(self) -> Iterator[PathPair]:
        """Enter the paths to the node; errors raised in the block name the node."""
        try:
            yield self.paths
        except SmboxError as error:
            self.name(error)
            raise

    def name(self, error: SmboxError) -> None:
        """Add the node to an error's facts unless it names one."""
        error.facts.setdefault("node", self.id)
        error.facts.setdefault("node_address", self.address)

    def __reduce__(self) -> tuple[type[Node], tuple[object, ...]]:
        """Pickle the settings."""
        return Node, (self.paths, self.id)


Nodes = Mapping[int, Node]
"""The nodes of an address space, by id."""


def home_of(name: str, ids: Collection[int]) -> int:
    """Return the id of the node that a name belongs to.

    When a node is added, it takes over only the names that it wins.

    Args:
        name: name of a region, counter, barrier, lock or run.
        ids: ids of all nodes; at least one.
    """

    def weight(node: int) -> tuple[bytes, int]:
        text = b"%d:" % node + name.encode(errors="surrogatepass")  # of an Enum: its characters
        return blake2b(text, digest_size=8).digest(), node

    return max(ids, key=weight)


def cut_rows(rows: int, count: int) -> list[tuple[int, int]]:
    """Cut rows into at most ``count`` consecutive parts of lengths that differ by at most 1.

    Returns:
        First and limit row of each part. No part is empty, except the only part of no rows.
    """
    parts = max(1, min(rows, count))
    each, longer = divmod(rows, parts)
    firsts = [part * each + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(firsts))


class StripedInfo(RegionInfo, frozen=True, kw_only=True):
    """Description of a striped region; its address is that of its first part.

    Args:
        parts: regions of one node each, in order of rows; at least one.
        head: the head; None for an optimizer's state, which has no name of its own.
    """

    parts: tuple[RegionInfo, ...]
    head: RegionInfo | None = None

    def pieces(self, first: int, limit: int) -> list[Piece]:
        """Cut a byte range by node; an empty range is one empty piece."""
        found, offset = [], 0
        for part in self.parts:
            begin, end = max(first - offset, 0), min(limit - offset, part.nbytes)
            if begin < end:
                found.append(Piece(part, begin, end, offset))
            offset += part.nbytes
        return found or [Piece(self.parts[0], 0, 0, 0)]


def striped_info(head_info: RegionInfo, head: Head) -> StripedInfo:
    """Return the description of the region that a head names; sends no request."""
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
    """Return the region that a head names, after a check that its parts exist.

    Without a deadline, each request has the timeout of the box.

    Raises:
        ConfigError: a part lies on a node that this box is not connected to.
        PeerLostError: the node has another memory, so the part no longer exists; or this box
            is connected to an older memory than the part's: connect again.
        RegionFreedError: a part was freed.
    """
    info = striped_info(head_info, head)
    for part in info.parts:
        _check_part(nodes, info.name, part, deadline_s)
    return info


def _check_part(nodes: Nodes, name: str, part: RegionInfo, deadline_s: float | None) -> None:
    """Raise as ``opened`` unless a part exists."""
    node = node_of(nodes, name, part)
    with node.named():
        if node.control.node.uuid != part.node_uuid:
            # It raises if this box has the older memory.
            node.control.stats(node.paths.request_s(deadline_s))
            raise PeerLostError(
                "the memory of a part of this region no longer exists, its node has another"
                " one: free the region (smbox rm) and create it again",
                region=name,
                outcome="none",
            )
        try:
            node.control.locate(part.address, node.paths.request_s(deadline_s))
        except RegionFreedError as error:
            raise RegionFreedError(
                "a part of this region was freed: free the region (smbox rm) and create it"
                " again",
                region=name,
            ) from error


def node_of(nodes: Nodes, name: str, part: RegionInfo) -> Node:
    """Return the node of a part; ConfigError if this box is not connected to it."""
    node = nodes.get(part.address.node)
    if node is None:
        raise ConfigError(
            "a part of this region lies on a node that this box is not connected to: connect"
            " to all nodes",
            region=name,
            node=part.address.node,
            known=sorted(nodes),
        )
    return node


def versions_of(nodes: Nodes, info: StripedInfo, deadline_s: float) -> list[int]:
    """Return the versions of the parts; the deadline is that of all requests together."""
    found = []
    for part in info.parts:
        with nodes[part.address.node].named() as paths:
            found.append(paths.data(part).version(part, request_timeout_s(deadline_s)))
    return found
