"""ADOWNPOUR: Downpour that evaluates the average of the center over all pushes.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, comparators. c the center, z its average, t the number of pushes of all
workers so far (a shared counter):

    after every push, t = t + 1:  z = (1 - a) z + a c,  a = 1 / (t + 1)

Order: the worker pushes and fetches as in Downpour, then updates the average with the center as
its push left it. Push and average are not one atomic operation: if two workers push at the same
time, either may update the average first, which swaps the weights of these two terms only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import torch

from smbox_torch.boxes import BoxLike, CounterLike
from smbox_torch.downpour.averaged import AveragedDownpour
from smbox_torch.optimizer.center import Shared
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["ADownpour"]


class ADownpour(AveragedDownpour):
    """Downpour with the plain average of the center over all pushes.

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
        super().__init__(optimizer, box, name, period=period, **options)
        self._pushes = box.counter(f"{name}.pushes")

    def rate(self) -> float:
        """Return ``1 / (t + 1)`` for push number t of all workers."""
        return 1.0 / (self._pushes.add(1) + 2)

    def _shared(self) -> Iterator[Shared]:
        yield from super()._shared()
        yield _Pushes(self._pushes)


class _Pushes:
    """The number of pushes, t, as shared state of a checkpoint."""

    def __init__(self, counter: CounterLike) -> None:
        self._counter = counter

    def values(self) -> dict[str, torch.Tensor]:
        return {"pushes": torch.tensor(self._counter.value, device="cpu")}

    def put(self, values: dict[str, torch.Tensor]) -> None:
        wanted = int(values["pushes"])
        while (found := self._counter.value) != wanted:
            self._counter.compare_and_swap(found, wanted)
