"""AveragedDownpour: the base class of ADOWNPOUR and MVADOWNPOUR.

After every push the worker moves the average z towards the center c that the push returned:
``z = z + a (c - z)``. This is an elastic exchange that does not change x; it is atomic.
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
    """Base class of the averaged variants; ``center_into`` copies the average.

    Args:
        optimizer: the inner optimizer; it does the local steps.
        box: the memory box.
        name: name of the run.
        period: steps between two pushes; each push also fetches.
        options: model, workers and others: see BoxOptimizer.
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
        self.average = Center(box, f"{name}.average", self.flat, loads=False)
        self._unused = [np.empty_like(buffer.host) for buffer in self.flat.buffers]

    def rate(self) -> float:
        """Return a, the weight of the center that the push returned, in (0, 1]."""
        raise NotImplementedError

    def _exchange_nbytes(self, *, push: bool, fetch: bool) -> int:
        beside = self.average.sent_nbytes + self.average.nbytes
        return super()._exchange_nbytes(push=push, fetch=fetch) + beside

    def _transfer(self, *, push: bool, fetch: bool) -> None:
        super()._transfer(push=push, fetch=fetch)
        rate = self.rate()
        for (buffer, region), sender, unused in zip(
            self.average, self.average.senders, self._unused, strict=True
        ):
            with sender.sending(buffer.host) as sent:
                region.elastic(sent, rate, delta=unused)

    def _evaluated_center(self) -> Center:
        return self.average

    def _shared(self) -> Iterator[Shared]:
        yield from super()._shared()
        yield self.average
