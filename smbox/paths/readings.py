"""Reads of regions as data: a range, a snapshot, rows, or sums of products. Pure."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.sinks import Bytes
from smbox.paths.work import Changes, Operation, RegionInfo, Sums
from smbox.wire.header import REQUEST_NBYTES_MAX
from smbox.wire.operands import PLACES_MAX


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
    sums: Sums
    op: ClassVar[str] = "dot"


PathRequest: TypeAlias = Operation | Changes | Reading | RowsReading | Product
"""A request to a data path, as data. Its arrays must not be touched until it is done."""
