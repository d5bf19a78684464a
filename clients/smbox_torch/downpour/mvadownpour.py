"""MVADOWNPOUR: Downpour that evaluates a moving average of the center.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, comparators. c the center, z its moving average:

    after every push:  z = (1 - a) z + a c,  a = 0.001 by default

Order: the worker pushes and fetches as in Downpour, then updates the average.
"""

from __future__ import annotations

from typing import Unpack

import torch

from smbox_torch.boxes import BoxLike
from smbox_torch.checks import share
from smbox_torch.downpour.averaged import AveragedDownpour
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["MVADownpour"]

RATE = 0.001
"""The paper's constant weight of the newest center."""


class MVADownpour(AveragedDownpour):
    """Downpour with a moving average of the center.

    Args:
        optimizer: the inner optimizer; it does the local steps.
        box: the memory box.
        name: name of the run.
        rate: weight a of the newest center, in (0, 1]; the same on all workers.
        period: steps between two pushes; each push also fetches.
        options: model, workers and others: see BoxOptimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        rate: float = RATE,
        period: int = 1,
        **options: Unpack[BoxOptions],
    ) -> None:
        self._rate = share("rate", rate)
        super().__init__(optimizer, box, name, period=period, **options)

    def _agreed(self) -> dict[str, object]:
        return super()._agreed() | {"rate": self._rate}

    def rate(self) -> float:
        """Return the constant weight."""
        return self._rate
