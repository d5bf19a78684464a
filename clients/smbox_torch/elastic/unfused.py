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
from smbox_torch.optimizer.center import Center

__all__ = ["UnfusedExchange"]


class UnfusedExchange:
    """The unfused exchange of one worker: it keeps the center as read, and the move.

    Args:
        center: the center and the worker's x.
        increments: regions of this worker only, one per region of the center. If given, the
            move is written there and the memory adds region to region, as in ShmCaffe.

    Attributes:
        unsent: indices of the regions whose last move was not sent to the center yet.

    Raises:
        ConfigError: increments are given, and the memory cannot add region to region.
    """

    def __init__(self, center: Center, increments: list[RegionLike] | None = None) -> None:
        if increments is not None and not all(
            hasattr(region, "accumulate_from") for region in center.regions
        ):
            raise ConfigError("this memory cannot add region to region: leave out increment=")
        self.center = center
        self._increments = increments
        self._read = [np.empty_like(buffer.host) for buffer in center.flat.buffers]
        self._moves = [np.empty_like(read) for read in self._read]
        self._sent: list[Array] = []
        self.unsent: list[int] = []

    def read(self) -> None:
        """Read the center."""
        for read, region in zip(self._read, self.center.regions, strict=True):
            region.get(out=read)

    def distances(self, xs: Sequence[Array], moving_rate: float) -> list[Array]:
        """Return d = moving_rate (x - center as read) for the next add; x is not changed.

        Args:
            xs: one ``[P]`` per region of the center, of its dtype.
            moving_rate: share of the distance that x and center move.

        Returns:
            One move per region, rounded to the wire's dtype, so that x and the center move by
            the same amount. The next call overwrites this memory.
        """
        for x, read, move in zip(xs, self._read, self._moves, strict=True):
            np.subtract(x, read, out=move)
            np.multiply(move, move.dtype.type(moving_rate), out=move)
        self._sent = self.center.operands(self._moves)
        self.unsent = [*range(len(self._sent))]
        return self._sent

    def move(self, moving_rate: float) -> None:
        """Compute d and subtract it from x."""
        buffers = self.center.flat.buffers
        xs = [buffer.load() for buffer in buffers]
        for x, sent, buffer in zip(xs, self.distances(xs, moving_rate), buffers, strict=True):
            np.subtract(x, sent, out=x)
            buffer.store()

    def add(self) -> None:
        """Add d to the center, at the memory; nothing that was sent before is sent again."""
        while self.unsent:
            index = self.unsent[-1]
            region = self.center.regions[index]
            if self._increments is None:
                region.accumulate(self._sent[self.unsent.pop()])
                continue
            self._increments[index].put(self._sent[index])
            adding = cast("AddingRegionLike", region)  # checked at construction
            adding.accumulate_from(self._increments[self.unsent.pop()])
