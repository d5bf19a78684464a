"""Downpour with an average of the center beside it: what ADOWNPOUR and MVADOWNPOUR share.

After every push the pushing worker moves the average z towards the center c it just saw,
``z = z + a (c - z)``: an elastic exchange whose x stays where it is, atomic at the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import numpy as np
import torch

from smbox_torch.boxes import BoxLike
from smbox_torch.checks import whole
from smbox_torch.downpour.downpour import Downpour
from smbox_torch.optimizer.center import Center, Shared
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["AveragedDownpour"]


class AveragedDownpour(Downpour):
    """Base of the averaged variants; ``center_into`` gives the average.

    Args:
        optimizer: does the local steps.
        box: the memory.
        name: of the run.
        period: steps between two pushes, each with its fetch.
        options: model, workers: see BoxOptimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        period: int = 1,
        **options: Unpack[BoxOptions],
    ) -> None:
        period = whole("period", period)
        super().__init__(optimizer, box, name, n_push=period, n_fetch=period, **options)
        self.average = Center(box, f"{name}.average", self.flat, leads=False)
        self._unused = [np.empty_like(buffer.host) for buffer in self.flat.buffers]

    def rate(self) -> float:
        """Return a, the weight of the center that was just seen, in (0, 1]."""
        raise NotImplementedError

    def _exchange_nbytes(self, *, push: bool, fetch: bool) -> int:
        beside = self.average.sent_nbytes + self.average.nbytes
        return super()._exchange_nbytes(push=push, fetch=fetch) + beside

    def _transfer(self, *, push: bool, fetch: bool) -> None:
        super()._transfer(push=push, fetch=fetch)
        rate = self.rate()
        sent = self.average.operands(buffer.host for buffer in self.flat.buffers)
        for region, x, unused in zip(self.average.regions, sent, self._unused, strict=True):
            region.elastic(x, rate, delta=unused)

    def _evaluated_center(self) -> Center:
        return self.average

    def _shared(self) -> Iterator[Shared]:
        yield from super()._shared()
        yield self.average
