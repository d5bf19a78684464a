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

from typing import Any

import torch

from smbox_torch.averaged import AveragedDownpour
from smbox_torch.boxes import BoxLike

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
        workers: int | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(optimizer, box, name, period=period, workers=workers, model=model)
        self._pushes = box.counter(f"{name}.pushes")

    def rate(self) -> float:
        """Return ``1 / (t + 1)`` for push number t of all workers."""
        return 1.0 / (self._pushes.add(1) + 2)

    def _extra_state(self) -> dict[str, Any]:
        return {**super()._extra_state(), "pushes": self._pushes.value}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        """Set the count in new memory; in memory that is in use it counts on."""
        super()._load_extra_state(extra)
        self._pushes.compare_and_swap(0, extra["pushes"])
