"""Streaming of a model's buffers: averages of statistics and the maximum of batch counts.

The streamer calls ``stream`` repeatedly while forward passes change the model's statistics, and
the solver calls ``hand_over`` at each step. On the CPU, a forward pass that stores during a
pass of the streamer may lose its change; on a device, at most every second forward pass does.
Every stored value lies between two values that were read, so no variance becomes negative.
"""

from __future__ import annotations

import numpy as np

from smbox_torch.boxes import Array, RegionLike
from smbox_torch.optimizer.batch_counts import BatchCounts
from smbox_torch.optimizer.center import Center

__all__ = ["StatisticsStream"]


class StatisticsStream:
    """The buffers of one worker and their regions.

    Args:
        statistics: the worker's statistics and their regions; None: the model has none.
        counts: the worker's counts and their region.
    """

    def __init__(self, statistics: Center | None, counts: BatchCounts) -> None:
        self._pairs = [] if statistics is None else list(statistics)
        self._left = [buffer.host.copy() for buffer, _ in self._pairs]
        self._is_given, self._is_streamed = False, False
        self._counts = counts

    def hand_over(self) -> None:
        """Copy counts, and statistics of a device, to or from the host memory that streams."""
        takes = self._is_given and self._is_streamed
        for buffer, _ in self._pairs:
            if takes:
                buffer.store()
            else:
                buffer.load()
        self._is_given, self._is_streamed = not takes, False
        self._counts.hand_over()

    def stream(self, moving_rate: float) -> int:
        """Exchange statistics and counts once; return the number of bytes transferred.

        Args:
            moving_rate: share of the distance by which worker and memory move.
        """
        nbytes = 0
        for index, (buffer, region) in enumerate(self._pairs):
            nbytes += self._average(index, buffer.host, region, moving_rate)
        self._is_streamed = True
        self._counts.exchange()
        return nbytes + self._counts.nbytes

    def _average(self, index: int, own: Array, shared: RegionLike, moving_rate: float) -> int:
        """Average the statistics if a forward pass changed them since, else fetch them."""
        left = self._left[index]
        is_changed = not np.array_equal(own, left, equal_nan=True)
        np.copyto(left, own)
        if is_changed:
            shared.elastic(left, moving_rate)
        else:
            shared.get(out=left)
        np.copyto(own, left)
        return left.nbytes * (1 + is_changed)
