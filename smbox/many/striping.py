"""Striping: where the parts of one striped region lie, and how to find them by its head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from smbox import dtypes
from smbox.address import GlobalAddress
from smbox.deadline import answer_s
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    PeerLostError,
    RegionFreedError,
)
from smbox.head import Head, HeadPart, read
from smbox.many.node import Node
from smbox.paths.pair import PathPair
from smbox.paths.work import RegionInfo
from smbox.region import Region

NO_MEMORY = b""
"""Stands for the memory of a striped region, which lies in several."""

Nodes = Mapping[int, Node]


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

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return these rows of an array that has the striped region's (or slice's) shape."""
        return array[self.first_row : self.limit_row] if array.ndim else array


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
