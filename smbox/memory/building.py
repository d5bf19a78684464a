"""Making a region, slice by slice.

A region is built under a temporary name and renamed when whole, so that nobody, and no
restarted node, ever sees half of one. Large ones take a while (a first touch of a page runs
at about 2 GB/s): ``Building.step`` does a slice, so that a node serves others in between.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.address import OFFSET_MAX
from smbox.memory import layout, region_header
from smbox.memory.layout import RegionHeader
from smbox.memory.mapped import MappedRegion
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import Segment, no_room, room_nbytes

SLICE_NBYTES: Final = 8 * 1024 * 1024


class Building:
    """A region that is being made.

    Args:
        node: name of the memory node.
        spec: what it will be.
        address: its global address, already taken.
        init: what every element begins with; None is zero.

    Raises:
        OutOfMemoryError: /dev/shm has no room; nothing is left.
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
        self._init = init
        self._fills = init is not None and any(_element(spec, init).tobytes())  # -0.0 is no 0
        self._next = 0
        name = layout.building_name(node, address)
        self._segment = Segment.create_sparse(name, nbytes)

    def step(self) -> bool:
        """Allocate and fill one slice; True when all is done.

        Raises:
            OutOfMemoryError: somebody else took the room; call ``abandon``.
        """
        first = self._next
        limit = min(first + SLICE_NBYTES, self._segment.nbytes)
        self._segment.allocate(first, limit - first)
        if self._fills:
            self._fill(first, limit)
        self._next = limit
        return limit == self._segment.nbytes

    def finish(self, state: int) -> MappedRegion:
        """Write the header and give the segment its name.

        Args:
            state: ``RegionState.LIVE``, or ``BUILDING`` where its creator fills it first.
        """
        page = self._segment.bytes[: RegionHeader.NBYTES]
        region_header.write(page, self.spec, self._address, state)
        self._segment.rename(layout.region_name(self._node, self._address & OFFSET_MAX))
        return MappedRegion(self._node, self._segment)

    def abandon(self) -> None:
        """Give up: nothing is left of it."""
        self._segment.unlink()
        self._segment.close()

    def _fill(self, first: int, limit: int) -> None:
        begin = layout.data_offset(self.spec.nbytes)
        first = max(first, begin)
        limit = min(limit, begin + self.spec.nbytes)
        if first < limit:
            view = self._segment.bytes[first:limit].view(self.spec.dtype.numpy)
            np.copyto(view, _element(self.spec, self._init))


def _element(spec: RegionSpec, value: float | None) -> NDArray[Any]:
    number = value if value is None or spec.dtype.kind != "float" else float(value)
    return np.asarray(number, dtype=spec.dtype.numpy)
