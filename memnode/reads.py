"""GET and GATHER: private copies of a range, or of rows, of a region.

Each stripe is as it was between two commits. The copy is the reply's own: the region changes
while ZeroMQ still sends. How much of such memory there may be, unsent.py says.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memnode.channel import Channel
from memnode.checks import check_range
from memnode.registry import Registry
from smbox.errors import AddressRangeError
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import read_range
from smbox.memory.row_read import RowRead
from smbox.wire import operands
from smbox.wire.codec import Reply, Request, reply_to


class ReadTask:
    """A read under way.

    Args:
        request: a GET.
        channel: who asks.
        registry: finds the region.
        locks: the lane's open lock file.
    """

    def __init__(
        self, request: Request, channel: Channel, registry: Registry, locks: LockFile
    ) -> None:
        self.request = request
        self._channel = channel
        self._registry = registry
        self._locks = locks

    def advance(self) -> Reply | None:
        """Copy the range; see ``Task``."""
        out = self._copy(self._registry.locate(self.request.address))
        return _reply(self.request, out, self._channel)

    def abandon(self) -> None:
        """Do nothing."""

    def _copy(self, region: MappedRegion) -> NDArray[np.uint8]:
        request = self.request
        first = request.address - region.address
        limit = first + request.nbytes
        check_range(first, request.nbytes, region.nbytes)
        out: NDArray[np.uint8] = np.empty(request.nbytes, np.uint8)
        read_range(region, first, limit, out, self._locks)
        region.check_usable()
        return out


class GatherTask:
    """A read of rows under way; the same Args as ``ReadTask``, of a GATHER."""

    def __init__(
        self, request: Request, channel: Channel, registry: Registry, locks: LockFile
    ) -> None:
        self.request = request
        self._channel = channel
        self._registry = registry
        self._locks = locks
        self._begun: tuple[RowRead, NDArray[np.uint8]] | None = None

    def advance(self) -> Reply | None:
        """Copy the rows, or those that writers were in the way of; see ``Task``."""
        if self._begun is None:
            self._begun = self._begin()
        read, out = self._begun
        read.step(self._locks)
        return _reply(self.request, out.reshape(-1), self._channel)

    def _begin(self) -> tuple[RowRead, NDArray[np.uint8]]:
        request = self.request
        region = self._registry.locate(request.address)
        gather = operands.unpack_gather(request.payload, request.nbytes)
        places = np.frombuffer(gather.places, np.int64)
        first = request.address - region.address
        _check_places(region, first, places, gather.row_nbytes)
        out: NDArray[np.uint8] = np.empty((places.size, gather.row_nbytes), np.uint8)
        return RowRead(region, first, places, gather.row_nbytes, out), out

    def abandon(self) -> None:
        """Do nothing."""


def _check_places(
    region: MappedRegion, first: int, places: NDArray[np.int64], row_nbytes: int
) -> None:
    """Raise AddressRangeError unless all rows lie in the region, from ``first`` on."""
    rows = (region.nbytes - first) // row_nbytes
    low, high = int(places.min()), int(places.max())
    if first < 0 or low < 0 or high >= rows:
        raise AddressRangeError(
            "rows outside the region", name=region.spec.name, low=low, high=high, rows=rows
        )


def _reply(request: Request, out: NDArray[np.uint8], channel: Channel) -> Reply:
    channel.unsent.add(out)
    return reply_to(request, out.data)
