"""Regions, nodes and changes as data, for every data path. Pure."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.array import as_bytes
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.region_header import RegionDescription
from smbox.paths.sinks import Bytes, Sink
from smbox.wire.ops import carried_nbytes, cut

Sums = NDArray[np.float64]
ByteRange = tuple[int, int]


class RegionInfo(RegionDescription, frozen=True, kw_only=True):
    """A region as its clients know it; constant as long as the region exists.

    Args:
        address: of its first byte; never reused after the region is freed.
        node_uuid: identifies the memory that holds the region.
    """

    address: GlobalAddress
    node_uuid: bytes

    def pieces(self, first: int, limit: int) -> list[Piece]:
        """Split bytes ``[first, limit)`` of its data by node: here one piece."""
        return [Piece(self, first, limit, 0)]


class Piece(NamedTuple):
    """A range of a region's data on one node.

    Attributes:
        info: the region on that node that holds the bytes.
        first: first byte, of its data.
        limit: byte behind the last.
        offset: first byte of ``info`` in the data of the whole region.
    """

    info: RegionInfo
    first: int
    limit: int
    offset: int

    @property
    def begin(self) -> int:
        """The first byte, in the data of the whole region."""
        return self.offset + self.first

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.limit - self.first


class CreateRequest(RegionDescription, frozen=True):
    """The parameters of a region to be created.

    Args:
        init: initial value of every element; None: zero.
        publish: False creates a region without a name, which only its creator may write, by
            address, until ``ControlPath.publish`` makes it visible.
        exist_ok: return an existing region of the same layout instead of an error.
    """

    init: bool | int | float | None = None
    publish: bool = True
    exist_ok: bool = False


class NodeInfo(Struct, frozen=True):
    """A memory node as its handshake describes it.

    Args:
        name: of the node; the prefix of its segments.
        uuid: 16 bytes that identify the memory.
        node_id: the upper bits of the node's addresses.
        incarnation: number of times that a node has opened this memory.
    """

    name: str
    uuid: bytes
    node_id: int
    incarnation: int


class Operation(Struct, frozen=True, eq=False):
    """One change of a range of a region's data.

    Args:
        info: the region.
        op: its name for errors and statistics: "put", "accumulate", "elastic", ...
        kernel: the function that computes it: a ``KernelCode``, or an ``OptimizerCode``.
        scale: a Python number, exact in the region's dtype.
        first: first byte of the range in the region's data, on an element boundary.
        limit: byte behind the range.
        source: C-contiguous, as many elements as the range has; for the whole kernels
            (COMPARE_SWAP, ARRIVE, WITHDRAW, the SCATTERs) an operand of its own length; of an
            ``accumulate_from`` or a SCALE empty.
        operand: dtype code of a source that is narrower than the region's elements, and that
            much shorter; else 0.
        sink: receives the old bytes; None: they are not returned.
        states: regions of an optimizer's state, in the order of its row in ``OPTIMIZERS``.
        parameters: of an optimizer, in the order of that row.
    """

    info: RegionInfo
    op: str
    kernel: int
    scale: float
    first: int
    limit: int
    source: NDArray[Any]
    operand: int = 0
    sink: Sink | None = None
    states: tuple[RegionInfo, ...] = ()
    parameters: tuple[float, ...] = ()

    def operand_of(self, first: int, limit: int) -> Bytes:
        """Return the part of the source for bytes ``[first, limit)``."""
        begin = carried_nbytes(first - self.first, self.operand)
        end = carried_nbytes(limit - self.first, self.operand)
        return as_bytes(self.source)[begin:end]

    def stripes(self) -> list[Operation]:
        """Split it into changes of one stripe each, for a batch."""
        first, limit = self.first, self.limit
        if 0 < limit - first <= STRIPE_NBYTES - first % STRIPE_NBYTES:
            return [self]
        return [
            replace(self, first=at, limit=end, source=self.operand_of(at, end))
            for at, end in cut(first, limit, STRIPE_NBYTES)
        ]


class Signalled(Operation, frozen=True, eq=False, kw_only=True):
    """A change and a signal behind it; the outcome is "all" once both are done.

    The change has no sink, and at least one byte.

    Args:
        signal: a change of a counter on the same node. It takes effect once all of the first
            change has, and never if that failed or was cancelled before.
    """

    signal: Operation


class Copying(Operation, frozen=True, eq=False, kw_only=True):
    """A change whose operand is as many bytes of another region, read stripe by stripe.

    Args:
        other: the other region.
        other_first: first byte of the operand in its data.
    """

    other: RegionInfo
    other_first: int


class Changes(Struct, frozen=True, eq=False):
    """Changes in order, of one stripe each; not a transaction.

    Args:
        op: the verb's name for errors.
        info: the region that all of them change; None: they change several.
        operations: the changes.
    """

    op: str
    info: RegionInfo | None
    operations: list[Operation]
    first: ClassVar[int] = 0

    @property
    def limit(self) -> int:
        """The number of changes."""
        return len(self.operations)
