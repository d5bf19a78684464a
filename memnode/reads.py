"""GET: a private copy of a range, each stripe as it was between two commits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memnode.channel import Channel
from memnode.checks import check_range, check_served
from memnode.registry import Registry
from smbox.memory.locks import LockFile
from smbox.memory.mapped import pieces
from smbox.memory.reading import read_piece
from smbox.wire.codec import Reply, Request


class ReadTask:
    """A read under way.

    The copy is the reply's own: the region changes while ZeroMQ still sends. Its memory is
    bounded by the window of requests that a client may have unanswered.

    Args:
        request: a GET.
        channel: who asks.
        registry: finds the region.
        locks: the node's open lock file.
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
        request = self.request
        region = self._registry.locate(request.address)
        first = request.address - region.address
        check_served(region.spec)
        check_range(first, request.nbytes, region.nbytes)
        out: NDArray[np.uint8] = np.empty(request.nbytes, np.uint8)
        for piece in pieces(first, first + request.nbytes):
            read_piece(
                region, piece, out[piece.first - first : piece.limit - first], self._locks
            )
        return Reply(
            request.op,
            request=request.request,
            number=request.number,
            address=request.address,
            nbytes=request.nbytes,
            version=region.version(),
            payload=out.data,
        )

    def abandon(self) -> None:
        """Do nothing."""
