"""Regions, nodes and requests as data, for every data path. Pure.

A request is a change (``Operation``, ``Changes``) or a read (``Reading``, ``RowsReading``,
``Product``).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.array import as_bytes
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.region_header import RegionDescription
from smbox.paths.sinks import Bytes, Sink
from smbox.wire.header import REQUEST_NBYTES_MAX
from smbox.wire.operands import PLACES_MAX
from smbox.wire.ops import carried_nbytes, cut

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
        scale: from ``kernels.packed_scale``; NO_SCALE for a kernel without one.
        first: first byte of the range in the region's data, on an element boundary.
        limit: byte behind the range.
        source: C-contiguous, as many elements as the range has; for the whole kernels
            (COMPARE_SWAP, ARRIVE, WITHDRAW, the SCATTERs) an operand of its own length; of an
            ``accumulate_from`` or a SCALE empty.
        operand: dtype code of a source that is narrower than the region's elements, and that
            much shorter; else 0.
        sink: receives the old bytes; None: they are not returned.
        states: regions of an optimizer's state, in the order of its row in ``OPTIMIZERS``.
        parameters: of an optimizer, ``f64[PARAMETERS_MAX]``: those of that row, then zeros.
    """

    info: RegionInfo
    op: str
    kernel: int
    scale: bytes
    first: int
    limit: int
    source: NDArray[Any]
    operand: int = 0
    sink: Sink | None = None
    states: tuple[RegionInfo, ...] = ()
    parameters: NDArray[np.float64] | None = None

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


class Reading(Struct, frozen=True, eq=False):
    """A read of a range, each stripe as it was between two commits.

    Args:
        info: the region.
        first: first byte of the range in its data, at an element.
        limit: byte behind the range.
        out: C-contiguous, as many elements as the range has.
        operand: dtype code of ``out`` where it is narrower than the region's elements; else 0.
    """

    info: RegionInfo
    first: int
    limit: int
    out: NDArray[Any]
    operand: int = 0
    op: ClassVar[str] = "get"


class Snapshot(Reading, frozen=True, eq=False):
    """A read of a range as it was at one moment; the region has locks, ``operand`` is 0."""


class RowsReading(Struct, frozen=True, eq=False):
    """A read of rows, in portions.

    Args:
        info: the region.
        begin: first byte of row 0 in its data.
        row_nbytes: of each row; 1 to 1 MiB.
        places: ``i64[count]``, ascending, all inside the region.
        order: ``i64[count]``: the index of the row of ``out`` that receives each place.
        out: ``u8[count, bytes of a row]``.
        operand: dtype code of its elements where it is narrower than the region's; else 0.
    """

    info: RegionInfo
    begin: int
    row_nbytes: int
    places: NDArray[np.int64]
    order: NDArray[np.intp]
    out: Bytes
    operand: int = 0
    op: ClassVar[str] = "get"
    first: ClassVar[int] = 0

    @property
    def limit(self) -> int:
        """The number of places."""
        return self.places.size

    def portion_limit(self, begin: int) -> int:
        """Return the limit of the portion that begins at index ``begin`` of ``places``.

        A portion is one read, of up to 1 MiB. It splits the rows of a stripe only if these
        alone are more.
        """
        limit = begin + min(REQUEST_NBYTES_MAX // self.row_nbytes, PLACES_MAX)
        if limit >= self.places.size:
            return self.places.size
        stripe = (self.begin + int(self.places[limit]) * self.row_nbytes) // STRIPE_NBYTES
        into_stripe = stripe * STRIPE_NBYTES - self.begin
        end = int(np.searchsorted(self.places, -(-into_stripe // self.row_nbytes)))
        return end if end > begin else limit

    def fill(self, begin: int, limit: int, rows: Bytes) -> None:
        """Store the rows of a portion, ``u8[limit - begin, bytes of a row]``."""
        self.out[self.order[begin:limit]] = rows


class Product(Struct, frozen=True, eq=False):
    """Sums of the products of two ranges of floats.

    Args:
        info: the region.
        first: byte of its data.
        limit: byte behind the last.
        other: as many bytes of the same dtype; it may be the same region.
        other_first: first byte of its data.
        sums: receives ``f64[stripes of the range]``, one for each stripe of ``info``; of
            several nodes those of each part in turn.
    """

    info: RegionInfo
    first: int
    limit: int
    other: RegionInfo
    other_first: int
    sums: NDArray[np.float64]
    op: ClassVar[str] = "dot"


PathRequest: TypeAlias = Operation | Changes | Reading | RowsReading | Product
"""A request to a data path, as data. Its arrays must not be touched until it is done."""
