"""An elastic exchange in three steps: read the center, move x, add the move to the center.

What Soft Memory Box's own operations give, and what papers ran. Between read and add other
workers may add, so the move may rest on an old center: stable only while workers x
moving_rate stays below the bound in ``stability.py``. Fused exchanges (``easgd.py``) have no
such gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smbox.errors import ConfigError
from smbox_torch.boxes import AddingRegionLike, Array, RegionLike
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.model.precision import Sender

__all__ = ["UnfusedExchange"]


class UnfusedExchange:
    """One worker's reads and moves, kept between the steps of an exchange.

    Args:
        pairs: buffers of the worker and the regions of the center.
        moving_rate: share of the distance that x and center move.
        increments: regions of this worker alone, one per pair: where they are given, a move
            is written there and the memory adds region to region, as ShmCaffe has it.

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
            isinstance(region, AddingRegionLike) for _, region in pairs
        ):
            raise ConfigError("this memory cannot add region to region: use no increments")
        self.moving_rate = moving_rate
        self._pairs = pairs
        self._increments = increments
        self._read = [np.empty_like(buffer.host) for buffer, _ in pairs]
        self._senders = [Sender(b.size, b.wide.dtype, b.wire) for b, _ in pairs]
        self._moves = [np.empty_like(read) for read in self._read]
        self._sent: list[Array] = []

    def read(self) -> None:
        """Read the center."""
        for read, (_, region) in zip(self._read, self._pairs, strict=True):
            region.get(out=read)

    def distances(self, xs: Sequence[Array]) -> list[Array]:
        """Return d = moving_rate (x - center as read), which the next add adds; x stays.

        Args:
            xs: one ``[P]`` per pair, of the center's dtype.

        Returns:
            As many moves in the wire's dtype, rounded for it, so that x loses what the center
            gets; memory that the next call changes.
        """
        self._sent = []
        for x, read, move, sender in zip(
            xs, self._read, self._moves, self._senders, strict=True
        ):
            np.subtract(x, read, out=move)
            np.multiply(move, move.dtype.type(self.moving_rate), out=move)
            self._sent.append(sender.operand(move))
        return self._sent

    def move(self) -> None:
        """Compute d and subtract it from x."""
        xs = [buffer.load() for buffer, _ in self._pairs]
        for x, sent, (buffer, _) in zip(xs, self.distances(xs), self._pairs, strict=True):
            np.subtract(x, sent, out=x)
            buffer.store()

    def add(self) -> None:
        """Add d to the center, at the memory."""
        for index, (move, (_, region)) in enumerate(zip(self._sent, self._pairs, strict=True)):
            if self._increments is None:
                region.accumulate(move)
                continue
            self._increments[index].put(move)
            assert isinstance(region, AddingRegionLike), "checked at construction"
            region.accumulate_from(self._increments[index])
