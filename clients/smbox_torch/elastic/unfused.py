"""An elastic exchange in three steps: read the center, move x, add the move to the center.

These are the operations of Soft Memory Box. Between read and add other workers may add, so the
move may be computed from an old center. The averaging is stable only while workers *
moving_rate is below the bound in ``stability.py``. Fused exchanges (``easgd.py``) are atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from smbox.errors import ConfigError
from smbox_torch.boxes import AddingRegionLike, Array, RegionLike
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.model.precision import Sender

__all__ = ["UnfusedExchange"]


class UnfusedExchange:
    """The unfused exchange of one worker: it keeps the center as read, and the move.

    Args:
        pairs: buffers of the worker and the regions of the center.
        moving_rate: share of the distance that x and center move.
        increments: regions of this worker only, one per pair. If given, the move is written
            there and the memory adds region to region, as in ShmCaffe.

    Attributes:
        unsent: numbers of the pairs whose last move was not sent to the center yet.

    Raises:
        ConfigError: increments are given, and the memory cannot add region to region.
    """

    def __init__(
        self,
        pairs: list[tuple[FlatBuffer, RegionLike]],
        moving_rate: float,
        increments: list[RegionLike] | None = None,
    ) -> None:
        if increments is not None and not all(
            hasattr(region, "accumulate_from") for _, region in pairs
        ):
            raise ConfigError("this memory cannot add region to region: leave out increment=")
        self.moving_rate = moving_rate
        self._pairs = pairs
        self._increments = increments
        self._read = [np.empty_like(buffer.host) for buffer, _ in pairs]
        self._senders = [Sender(b.size, b.wide.dtype, b.wire) for b, _ in pairs]
        self._moves = [np.empty_like(read) for read in self._read]
        self._sent: list[Array] = []
        self.unsent: list[int] = []

    def read(self) -> None:
        """Read the center."""
        for read, (_, region) in zip(self._read, self._pairs, strict=True):
            region.get(out=read)

    def distances(self, xs: Sequence[Array]) -> list[Array]:
        """Return d = moving_rate (x - center as read) for the next add; x is not changed.

        Args:
            xs: one ``[P]`` per pair, of the center's dtype.

        Returns:
            One move per pair, rounded to the wire's dtype, so that x and the center move by the
            same amount. The next call overwrites this memory.
        """
        self._sent = []
        for x, read, move, sender in zip(
            xs, self._read, self._moves, self._senders, strict=True
        ):
            np.subtract(x, read, out=move)
            np.multiply(move, move.dtype.type(self.moving_rate), out=move)
            self._sent.append(sender.operand(move))
        self.unsent = [*range(len(self._sent))]
        return self._sent

    def move(self) -> None:
        """Compute d and subtract it from x."""
        xs = [buffer.load() for buffer, _ in self._pairs]
        for x, sent, (buffer, _) in zip(xs, self.distances(xs), self._pairs, strict=True):
            np.subtract(x, sent, out=x)
            buffer.store()

    def add(self) -> None:
        """Add d to the center, at the memory; nothing that was sent before is sent again."""
        while self.unsent:
            index = self.unsent[-1]
            _, region = self._pairs[index]
            if self._increments is None:
                region.accumulate(self._sent[self.unsent.pop()])
                continue
            self._increments[index].put(self._sent[index])
            adding = cast("AddingRegionLike", region)  # checked at construction
            adding.accumulate_from(self._increments[self.unsent.pop()])
