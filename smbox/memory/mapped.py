"""Mapped regions (header, stripe table and data), and the creation of regions.

A region is built under a temporary name and renamed when it is complete: no process, and no
restarted node, sees an incomplete one. The first access to new pages runs at about 2 GB/s, so
``Building.step`` does one slice, and the node serves other requests between slices.
"""

from __future__ import annotations

from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.address import OFFSET_MAX
from smbox.errors import RegionFreedError, SegmentError
from smbox.memory import layout, orders, region_header
from smbox.memory.layout import STRIPE_NBYTES, RegionHeader, RegionState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import NoSegmentError, Segment, Word, no_room, room_nbytes
from smbox.native import library

SLICE_NBYTES: Final = 8 * 1024 * 1024
"""Bytes of one slice of long work at the node, which serves other requests between slices."""

_FREED: Final = "the region was freed, or its memory node was stopped"


class MappedRegion:
    """A region that this process has mapped, as long as this object or a view of it exists.

    Attributes:
        spec: description of the region.
        address: its global address.
        offset: of the address within the node.
        words: of the header.
        state: a value of ``RegionState``.
        table: ``u64[stripes, 8]``, one row for each stripe.
        data: ``u8[nbytes]``.
        dtype_code: number of the element type.
        block: the ``struct region`` of the native library.
        extents: the part of an order that names this region alone.

    Args:
        node: name of the memory node.
        segment: the region's segment.
    """

    state = Word(RegionHeader.STATE)

    def __init__(self, node: str, segment: Segment) -> None:
        self.node = node
        self.segment = segment
        self.spec: RegionSpec = region_header.read(segment.bytes[: RegionHeader.NBYTES])
        self.nbytes = self.spec.nbytes
        self.words: NDArray[np.uint64] = segment.words(0, RegionHeader.WORDS)
        self.address = int(self.words[RegionHeader.ADDRESS])
        self.offset = self.address & OFFSET_MAX
        self.stripe_count = layout.stripe_count(self.nbytes)
        if segment.nbytes != layout.segment_nbytes(self.nbytes):
            raise SegmentError(f"{segment.name} does not have the size of its header")
        if segment.name != layout.region_name(node, self.offset):
            raise SegmentError(f"{segment.name} has another address in its header")
        begin = layout.data_offset(self.nbytes)
        self.data: NDArray[np.uint8] = segment.bytes[begin : begin + self.nbytes]
        self.table: NDArray[np.uint64] = segment.words(
            RegionHeader.NBYTES, self.stripe_count * Stripe.WORDS
        ).reshape(self.stripe_count, Stripe.WORDS)
        self.dtype_code = self.spec.dtype.code
        self.block = orders.block_of(
            orders.address_of(self.words),
            orders.address_of(self.table),
            orders.address_of(self.data),
            self.nbytes,
            self.address,
            STRIPE_NBYTES,
            self.dtype_code,
            self.spec.consistency,
        )
        self.extents = orders.extents_of([self.block])

    @classmethod
    def attach(cls, node: str, offset: int) -> Self:
        """Map the region at ``offset`` of a node.

        Raises:
            RegionFreedError: no such segment: the region at this address was freed.
            SegmentError: it is damaged, has another format, or cannot be mapped.
        """
        try:
            segment = Segment.attach(layout.region_name(node, offset))
        except NoSegmentError:
            raise RegionFreedError(_FREED, offset=offset) from None
        return cls(node, segment)

    def version(self) -> int:
        """Return the number of commits: the sum over all stripes."""
        table = self.table
        version: int = library.load().short.smbox_version(orders.address_of(table), len(table))
        return version

    def array(self) -> NDArray[Any]:
        """View the data in the region's shape and dtype."""
        return self.data.view(self.spec.dtype.numpy).reshape(self.spec.shape)

    def try_lock(self, stripe: int, locks: LockFile) -> bool:
        """Lock a stripe, also one whose holder has died; return False if another one lives.

        Raises:
            PeerLostError: this is a forked child, and ``locks`` its parent's.
        """
        holder = int(self.table[stripe, Stripe.HOLDER])
        if holder not in (0, locks.id) and locks.is_alive(holder):
            return False
        row = orders.address_of(self.table[stripe])
        result = library.load().short.smbox_take(row, locks.word.address, holder)
        locks.check_own()
        return bool(result == orders.Result.DONE)

    def unlock(self, stripe: int, locks: LockFile) -> None:
        """Unlock a stripe if ``locks`` has locked it."""
        row = orders.address_of(self.table[stripe])
        library.load().short.smbox_leave(row, locks.word.address)

    def check_usable(self) -> None:
        """Raise RegionFreedError if the region was freed."""
        if self.state == RegionState.FREED:
            raise RegionFreedError(_FREED, name=self.spec.name)


class Building:
    """A region that is being created.

    Args:
        node: name of the memory node.
        spec: description of the region.
        address: its allocated global address.
        init: initial value of every element; None: 0.

    Raises:
        OutOfMemoryError: /dev/shm has no room; no segment is left.
    """

    def __init__(
        self, node: str, spec: RegionSpec, address: int, init: float | None = None
    ) -> None:
        nbytes = layout.segment_nbytes(spec.nbytes)
        if nbytes > room_nbytes():
            raise no_room(f"region {spec.name!r}", nbytes)
        self.spec = spec
        self._node = node
        self._address = address
        self._element = None if init is None else _element(spec, init)
        self._next = 0
        self._segment = Segment.create_sparse(layout.building_name(node, address), nbytes)

    def step(self) -> bool:
        """Allocate and fill the next slice; return whether the region is complete.

        Raises:
            OutOfMemoryError: /dev/shm has no room; call ``abandon``.
        """
        first = self._next
        limit = min(first + SLICE_NBYTES, self._segment.nbytes)
        self._segment.allocate(first, limit - first)
        if self._element is not None:
            self._fill(first, limit, self._element)
        self._next = limit
        return limit == self._segment.nbytes

    def finish(self, state: int) -> MappedRegion:
        """Write the header and rename the segment.

        Args:
            state: ``RegionState.LIVE``, or ``BUILDING`` if the creator still writes its
                contents.
        """
        page = self._segment.bytes[: RegionHeader.NBYTES]
        region_header.write(page, self.spec, self._address, state)
        self._segment.rename(layout.region_name(self._node, self._address & OFFSET_MAX))
        return MappedRegion(self._node, self._segment)

    def abandon(self) -> None:
        """Cancel the creation; no segment is left."""
        self._segment.unlink()

    def _fill(self, first: int, limit: int, element: NDArray[Any]) -> None:
        begin = layout.data_offset(self.spec.nbytes)
        first = max(first, begin)
        limit = min(limit, begin + self.spec.nbytes)
        if first < limit:
            np.copyto(self._segment.bytes[first:limit].view(element.dtype), element)


def _element(spec: RegionSpec, init: float) -> NDArray[Any] | None:
    """Return the initial value of the elements; None: zeros, which a new segment has."""
    number = float(init) if spec.dtype.kind == "float" else init
    element: NDArray[Any] = np.asarray(number, dtype=spec.dtype.numpy)
    return element if any(element.tobytes()) else None  # -0.0 is not all zeros
