"""ADOWNPOUR: Downpour, evaluated at the average of the center over all pushes.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, comparators. c the center, z its average, t the number of pushes of all
workers so far (a shared counter):

    after every push, t = t + 1:  z = (1 - a) z + a c,  a = 1 / (t + 1)

Order: Downpour's (push with fetch), then the average, by the worker that pushed, with the
center as its push left it. Averaging is not atomic with the push: of two that push at once
either may average first, which changes the weights of two neighbours, and no more.
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
    """Downpour with the plain average of the center; arguments as AveragedDownpour's."""

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
    """The number of pushes, t, as a checkpoint holds it."""

    def __init__(self, counter: CounterLike) -> None:
        self._counter = counter

    def values(self) -> dict[str, torch.Tensor]:
        return {"pushes": torch.tensor(self._counter.value)}

    def put(self, values: dict[str, torch.Tensor]) -> None:
        wanted = int(values["pushes"])
        while (found := self._counter.value) != wanted:
            self._counter.compare_and_swap(found, wanted)
