"""What reads want of a region, as data: a range, rows, or sums of products. Pure."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from smbox.array import as_bytes
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.sinks import Bytes
from smbox.paths.work import Changes, Copying, Operation, RegionInfo, Signalled, Sums
from smbox.wire.header import REQUEST_NBYTES_MAX
from smbox.wire.operands import PLACES_MAX
from smbox.wire.ops import carried_nbytes, count


class Reading(Struct, frozen=True, eq=False):
    """A read of a range, each stripe as it was between two commits.

    Args:
        info: the region.
        first: byte of its data where the range begins, at an element.
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

    def shares(self) -> list[tuple[int, Reading]]:
        """Cut it by node; see ``Operation``."""
        line, found = as_bytes(self.out), []
        for piece in self.info.pieces(self.first, self.limit):
            begin = carried_nbytes(piece.begin - self.first, self.operand)
            out = line[begin : begin + carried_nbytes(piece.nbytes, self.operand)]
            share = Reading(piece.info, piece.first, piece.limit, out, self.operand)
            found.append((piece.offset, share))
        return found


class Snapshot(Struct, frozen=True, eq=False):
    """A read of a range as it was at one moment.

    Args:
        info: the region, which has locks.
        first: byte of its data.
        limit: byte behind the last.
        out: C-contiguous, as many elements as the range has.
    """

    info: RegionInfo
    first: int
    limit: int
    out: NDArray[Any]
    operand: ClassVar[int] = 0
    op: ClassVar[str] = "get"

    def shares(self) -> list[tuple[int, Snapshot]]:
        """Return it as the share of one node; ConfigError: its rows lie in several parts."""
        piece = self.info.one_piece(self.first, self.limit, "snapshot")
        return [(piece.offset, Snapshot(piece.info, piece.first, piece.limit, self.out))]


class RowsReading(Struct, frozen=True, eq=False):
    """A read of rows, in portions.

    Args:
        info: the region.
        begin: byte of its data where row 0 begins.
        row_nbytes: of each row; 1 to 1 MiB.
        places: ``i64[count]``, ascending, all inside the region.
        order: ``i64[count]``: the row of ``out`` that each place fills.
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
        """Number behind the last place."""
        return self.places.size

    def portion_limit(self, begin: int) -> int:
        """Return where the portion ends that begins at the place numbered ``begin``.

        A portion is one read, of up to 1 MiB. It cuts no stripe's rows in two, unless
        these alone are more.
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

    def shares(self) -> list[tuple[int, RowsReading]]:
        """Cut it by the nodes that have some of the rows; see ``Operation``."""
        found = []
        for piece in self.info.pieces(self.begin, self.info.nbytes):
            first_row = (piece.begin - self.begin) // self.row_nbytes
            limit_row = first_row + piece.nbytes // self.row_nbytes
            at, end = self.places.searchsorted([first_row, limit_row]).tolist()
            if at < end:
                places, order = self.places[at:end] - first_row, self.order[at:end]
                mine = replace(
                    self, info=piece.info, begin=piece.first, places=places, order=order
                )
                found.append((piece.offset, mine))
        return found


class Product(Struct, frozen=True, eq=False):
    """A read of two ranges of floats that brings only sums of their products.

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
    sums: Sums
    op: ClassVar[str] = "dot"

    def shares(self) -> list[tuple[int, Product]]:
        """Cut it by node, where the rows of both regions lie beside; see ``Operation``."""
        pieces = self.info.pieces(self.first, self.limit)
        others = self.other.pieces(self.other_first, self.other_first + self.limit - self.first)
        found, at = [], 0
        for piece, other in zip(pieces, others, strict=True):
            end = at + count(piece.first, piece.limit, STRIPE_NBYTES)
            share = Product(*piece[:3], other.info, other.first, self.sums[at:end])
            found.append((piece.offset, share))
            at = end
        return found


PathRequest: TypeAlias = (
    Operation | Signalled | Copying | Changes | Reading | Snapshot | RowsReading | Product
)
"""What a verb asks of a path, as data; its arrays are untouchable until it is done."""
