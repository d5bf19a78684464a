"""Striping: where the parts of a striped region go, where they lie, and how to find them.

A name's node is found by rendezvous hashing (Thaler and Ravishankar 1998) over the node ids:
neither the order nor the spelling of addresses matters, and all clients that connect to the
same nodes agree without asking anybody.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from smbox import dtypes
from smbox.address import GlobalAddress
from smbox.array import as_bytes
from smbox.deadline import answer_s
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    PeerLostError,
    RegionFreedError,
)
from smbox.head import Head, HeadPart, read
from smbox.many.node import Node
from smbox.paths.pair import PathPair
from smbox.paths.work import Operation, RegionInfo
from smbox.region import Region
from smbox.wire.ops import carried_nbytes

NO_MEMORY = b""
"""Stands for the memory of a striped region, which lies in several."""

Nodes = Mapping[int, Node]


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


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows of a striped region (or slice) that lie on one node.

    Args:
        node: the node.
        region: these rows, as a region of that node.
        first_row: where they begin in the striped region or slice.
        offset: byte of the whole region's data where this node's part begins.
    """

    node: Node
    region: Region
    first_row: int
    offset: int

    @property
    def rows(self) -> int:
        """How many rows; a region without axes counts as one."""
        return self.region.shape[0] if self.region.shape else 1

    @property
    def limit_row(self) -> int:
        """The row behind the last."""
        return self.first_row + self.rows

    def of(self, array: NDArray[Any] | None) -> Any:
        """Return these rows of an array of the striped region's (or slice's) shape, or None."""
        if array is None or not array.ndim:
            return array
        return array[self.first_row : self.limit_row]

    def share_of(self, operation: Operation) -> Operation:
        """Return what a change of the striped region (or slice) is to these rows."""
        extent, nbytes = self.region.extent, self.region.nbytes
        begin = self.first_row * (nbytes // max(self.rows, 1))
        limit, sink, operand = begin + nbytes, operation.sink, operation.operand
        source = as_bytes(operation.source)
        return operation._replace(
            info=extent.info,
            first=extent.first,
            limit=extent.limit,
            source=source[carried_nbytes(begin, operand) : carried_nbytes(limit, operand)],
            sink=None if sink is None else sink.part(begin, limit, extent.first),
        )


@dataclass(frozen=True, slots=True)
class Striping:
    """A whole striped region.

    Args:
        info: what it is as a whole; the address is that of the first part.
        paths: to the node of its name, for the settings.
        parts: by row, at least one.
        head: its head; None for one without a name of its own, an optimizer's state.
    """

    info: RegionInfo
    paths: PathPair
    parts: tuple[Placed, ...]
    head: RegionInfo | None = None

    def between(self, first_row: int, limit_row: int) -> tuple[Placed, ...]:
        """Return the rows from ``first_row`` on, by node; of no rows, one part with none."""
        found = tuple(
            _rows_of(part, first_row, limit_row)
            for part in self.parts
            if part.first_row < limit_row and first_row < part.limit_row
        )
        return found or (_rows_of(self.parts[0], 0, 0),)


def _rows_of(part: Placed, first_row: int, limit_row: int) -> Placed:
    """Return those rows of a part that lie between two rows of the whole."""
    if not part.region.shape:
        return part
    first = max(first_row - part.first_row, 0)
    limit = max(min(limit_row - part.first_row, part.rows), first)
    begin = max(part.first_row - first_row, 0)
    return Placed(part.node, part.region[first:limit], begin, part.offset)


def read_head(home: Node, info: RegionInfo, deadline_s: float | None = None) -> Head | None:
    """Read what may be a head; None: an ordinary region."""
    region = home.region(info)
    with home.named():
        return read(info, lambda nbytes: region[:nbytes].get(timeout_s=answer_s(deadline_s)))


def head_striping(nodes: Nodes, home: Node, head_info: RegionInfo, head: Head) -> Striping:
    """Describe the parts that a head names, without a look at them: to free what is left."""
    parts = tuple(
        _placed(nodes[part.node], head, part) for part in head.parts if part.node in nodes
    )
    return striping_of(head_info, home.paths, head, parts)


def opened(
    nodes: Nodes, home: Node, head_info: RegionInfo, head: Head, deadline_s: float | None
) -> Striping:
    """Find the parts that a head names; without a deadline each node has the box's timeout.

    Raises:
        ConfigError: a part lies on a node that this box does not know.
        PeerLostError: another memory is there now: the part is gone for good; or this box
            is of an older memory than the part: connect again.
        RegionFreedError: a part was freed.
    """
    parts = tuple(_find(nodes, head_info.name, head, part, deadline_s) for part in head.parts)
    return striping_of(head_info, home.paths, head, parts)


def striping_of(
    head_info: RegionInfo, paths: PathPair, head: Head, parts: tuple[Placed, ...]
) -> Striping:
    """Put together what a head says and the parts that were found."""
    info = RegionInfo(
        address=GlobalAddress(head.parts[0].address),
        name=head_info.name,
        dtype=dtypes.by_name(head.dtype),
        shape=head.shape,
        consistency=head.consistency,
        node_uuid=NO_MEMORY,
    )
    return Striping(info, paths, parts, head_info)


def _find(
    nodes: Nodes, name: str, head: Head, part: HeadPart, deadline_s: float | None
) -> Placed:
    node = nodes.get(part.node)
    if node is None:
        raise ConfigError(
            "a part of this region lies on a node that this box does not know: connect to"
            " all nodes",
            region=name,
            node=part.node,
            known=sorted(nodes),
        )
    with node.named():
        if node.info.uuid != part.uuid:
            node.control.stats(node.answer_s(deadline_s))  # raises if it is we who are of old
            raise PeerLostError(
                "the memory that a part of this region lay in is gone: another one answers"
                " there; free the region (smbox rm) and create it again",
                region=name,
                outcome="none",
            )
        try:
            node.control.locate(GlobalAddress(part.address), node.answer_s(deadline_s))
        except (AddressRangeError, RegionFreedError) as error:
            raise RegionFreedError(
                "a part of this region was freed: free the region (smbox rm) and create it"
                " again",
                region=name,
            ) from error
    return _placed(node, head, part)


def _placed(node: Node, head: Head, part: HeadPart) -> Placed:
    dtype = dtypes.by_name(head.dtype)
    shape = (part.rows, *head.shape[1:]) if head.shape else ()
    row_nbytes = math.prod(head.shape[1:]) * dtype.itemsize
    info = RegionInfo(
        address=GlobalAddress(part.address),
        name=head.part_name,
        dtype=dtype,
        shape=shape,
        consistency=head.consistency,
        node_uuid=part.uuid,
    )
    return Placed(node, node.region(info), part.first_row, part.first_row * row_nbytes)


def check_alike(mine: Region, source: Region) -> None:
    """Raise LayoutMismatchError unless both have the same dtype and size."""
    if (source.dtype, source.nbytes) != (mine.dtype, mine.nbytes):
        raise LayoutMismatchError(
            "both regions need the same dtype and size", region=mine.name, source=source.name
        )


def beside(mine: Sequence[Placed], others: Sequence[Placed]) -> dict[int, Region]:
    """Return the other region's part on each node.

    Args:
        mine: rows of a striped region, by node.
        others: of another one; empty for a region of one node.

    Raises:
        ConfigError: the same rows do not lie on the same nodes.
    """
    if [_place(each) for each in mine] != [_place(each) for each in others]:
        raise ConfigError(
            "the same rows of both regions lie on the same nodes, or they cannot be combined"
            " there: get the one and accumulate it into the other",
            nodes=[each.node.id for each in mine],
            source_nodes=[each.node.id for each in others],
        )
    return {each.node.id: each.region for each in others}


def _place(placed: Placed) -> tuple[int, int]:
    return placed.node.id, placed.rows
