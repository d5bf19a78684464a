"""A model's buffers, streamed: averages of statistics and the maximum of batch counts.

A streamer calls ``stream`` again and again while forwards change the model's statistics, and
the solver calls ``hand_over`` at each step. On the CPU a forward that stores while a turn is
under way may lose what it stores, as chunks may be lost in Dogwild; on a device every second
forward at most does. Every value stored lies between two that were read, so no variance is
ever negative.
"""

from __future__ import annotations

import numpy as np

from smbox_torch.boxes import Array, RegionLike
from smbox_torch.optimizer.batch_counts import BatchCounts
from smbox_torch.optimizer.center import Center

__all__ = ["StatisticsStream"]


class StatisticsStream:
    """One worker's buffers and their counterparts in the memory.

    Args:
        statistics: the worker's and the shared ones; None: the model has none.
        counts: the worker's and the shared ones.
    """

    def __init__(self, statistics: Center | None, counts: BatchCounts) -> None:
        self._pairs = [] if statistics is None else list(statistics)
        self._left = [buffer.host.copy() for buffer, _ in self._pairs]
        self._is_given, self._is_streamed = False, False
        self._counts = counts

    def hand_over(self) -> None:
        """Bring counts, and from a device statistics, to where they are streamed, and back."""
        takes = self._is_given and self._is_streamed
        for buffer, _ in self._pairs:
            if takes:
                buffer.store()
            else:
                buffer.load()
        self._is_given, self._is_streamed = not takes, False
        self._counts.hand_over()

    def stream(self, moving_rate: float) -> int:
        """Exchange everything once; returns the bytes that travelled.

        Args:
            moving_rate: share of their distance by which both sides of an average move.
        """
        nbytes = 0
        for index, (buffer, region) in enumerate(self._pairs):
            nbytes += self._average(index, buffer.host, region, moving_rate)
        self._is_streamed = True
        self._counts.exchange()
        return nbytes + self._counts.nbytes

    def _average(self, index: int, own: Array, shared: RegionLike, moving_rate: float) -> int:
        """Average the statistics if a forward changed them since the last turn, else fetch."""
        left = self._left[index]
        is_changed = not np.array_equal(own, left, equal_nan=True)
        np.copyto(left, own)
        if is_changed:
            shared.elastic(left, moving_rate)
        else:
            shared.get(out=left)
        np.copyto(own, left)
        return left.nbytes * (1 + is_changed)
