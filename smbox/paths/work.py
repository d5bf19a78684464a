"""What a client wants of a node and its regions: the words of every path. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.region_header import Described
from smbox.wire.header import REQUEST_NBYTES_MAX
from smbox.wire.operands import PLACES_MAX
from smbox.work import Work

Bytes = NDArray[np.uint8]
Sums = NDArray[np.float64]
ByteRange = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo(Described):
    """What a client knows about a region; it never changes while the region lives.

    Args:
        address: of its first byte; never used again once the region is freed.
        node_uuid: of the memory that the region lies in.
    """

    address: GlobalAddress
    node_uuid: bytes

    def pieces(self, first: int, limit: int) -> list[Piece]:
        """Cut bytes ``[first, limit)`` of its data by the nodes that they lie on: here one."""
        return [Piece(self, first, limit, 0)]


class Piece(NamedTuple):
    """Bytes of a region's data that lie on one node.

    Attributes:
        info: the region of that node that holds them.
        first: byte of its data.
        limit: byte behind the last.
        offset: byte of the whole region's data where the data of ``info`` begins.
    """

    info: RegionInfo
    first: int
    limit: int
    offset: int

    @property
    def begin(self) -> int:
        """The first byte, of the whole region's data."""
        return self.offset + self.first

    @property
    def nbytes(self) -> int:
        """How many bytes they are."""
        return self.limit - self.first


@dataclass(frozen=True, slots=True)
class CreateRequest(Described):
    """What a client asks for when it creates a region.

    Args:
        init: a scalar that every element begins with; None: zeros.
        publish: False builds a region that only its creator may write, by address, until
            ``ControlPath.publish`` makes it visible.
        exist_ok: an existing region of the same layout is the answer, not an error.
    """

    init: bool | int | float | None = None
    publish: bool = True
    exist_ok: bool = False


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a client learned about its memory node from the handshake.

    Args:
        name: of the node; the prefix of its segments.
        uuid: 16 bytes, of the memory: another memory has another one.
        node_id: the upper bits of the node's addresses.
        incarnation: how often a node has opened this memory.
    """

    name: str
    uuid: bytes
    node_id: int
    incarnation: int


class Sink(Protocol):
    """Takes the old bytes of a change, committed piece by committed piece, in order."""

    @property
    def back(self) -> int:
        """What the native library hands back instead, an ``orders.Back``."""
        ...

    def address(self, operation: Operation, source: int) -> int:
        """Return where to, for an operation or a part of one whose source is at an address."""
        ...

    def part(self, begin: int, limit: int, first: int) -> Sink:
        """Return the sink of bytes ``[begin, limit)`` of the change, done to another region.

        Args:
            begin: from the first byte of the change.
            limit: byte behind the last.
            first: byte of the other region's data where that begins.
        """
        ...

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Take the bytes that ``[first, limit)`` of the region's data held before.

        Called after the commit. ``old`` is only lent for the call. When an exception (an
        interrupt) left the last call half done, the same piece is given again: so a sink
        gives the same result when it is called twice with the same piece.
        """


class Operation(NamedTuple):
    """One change of a range of a region's data; its arrays are untouchable until it is done.

    Args:
        info: the region.
        op: its name for errors and statistics: "put", "accumulate", "elastic", ...
        kernel: what is done: a ``KernelCode``, or an ``OptimizerCode``.
        scale: a Python number, exact in the region's dtype.
        first: byte of the region's data where the range begins, on an element boundary.
        limit: byte behind the range.
        source: C-contiguous, as many elements as the range has; for the whole kernels
            (COMPARE_SWAP, ARRIVE, WITHDRAW, the SCATTERs) an operand of its own length; of an
            ``accumulate_from`` or a SCALE empty.
        operand: dtype code of the source where it is narrower than the region's elements:
            the source is that much shorter; else 0.
        sink: takes the old bytes, if they are wanted.
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


class RowsWanted(NamedTuple):
    """A read of rows, in portions.

    Args:
        first: byte of the region's data where row 0 begins.
        row_nbytes: of each row; 1 to 1 MiB.
        places: ``i64[count]``, count at least 1, ascending, all inside the region.
        order: ``i64[count]``: the row of ``out`` that each place fills.
        out: ``u8[count, bytes of a row]``.
        operand: dtype code of its elements where it is narrower than the region's; else 0.
    """

    first: int
    row_nbytes: int
    places: NDArray[np.int64]
    order: NDArray[np.intp]
    out: Bytes
    operand: int = 0

    def portion_limit(self, begin: int) -> int:
        """Return where the portion ends that begins at the place numbered ``begin``.

        A portion is one read, of up to 1 MiB. It cuts no stripe's rows in two, unless
        these alone are more.
        """
        limit = begin + min(REQUEST_NBYTES_MAX // self.row_nbytes, PLACES_MAX)
        if limit >= self.places.size:
            return self.places.size
        stripe = (self.first + int(self.places[limit]) * self.row_nbytes) // STRIPE_NBYTES
        into_stripe = stripe * STRIPE_NBYTES - self.first
        cut = int(np.searchsorted(self.places, -(-into_stripe // self.row_nbytes)))
        return cut if cut > begin else limit

    def fill(self, begin: int, limit: int, rows: Bytes) -> None:
        """Store the rows of a portion, ``u8[limit - begin, bytes of a row]``."""
        self.out[self.order[begin:limit]] = rows


class Done(Work):
    """Bytes ``[first, limit)`` of a change or a read, done as soon as it was asked for."""

    def __init__(self, first: int, limit: int) -> None:
        self._range = first, limit

    def advance(self, deadline_s: float) -> bool:  # noqa: ARG002 - nothing to wait for
        """Nothing is left."""
        return True

    def outcome(self) -> str:
        """All of it happened."""
        return "all"

    def ranges_done(self) -> list[ByteRange]:
        """List all of it."""
        return [self._range]
