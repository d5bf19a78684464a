"""ElasticOptimizer: the base class of elastic averaging, with period and moving rate."""

from __future__ import annotations

from typing import Unpack

import torch

from smbox_torch.boxes import BoxLike
from smbox_torch.checks import whole
from smbox_torch.elastic.stability import check_moving_rate
from smbox_torch.optimizer.moving_rate import FUSED_MOVING_RATE, unfused_moving_rate
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.wrapper import BoxOptimizer

__all__ = ["ElasticOptimizer"]


class ElasticOptimizer(BoxOptimizer):
    """Base class of the optimizers that pull a worker and the center together.

    Args:
        optimizer: the inner optimizer; it does the local steps.
        box: the memory box.
        name: name of the run.
        period: local steps between two exchanges.
        moving_rate: share of the distance that worker and center move. None: 0.45 for a fused
            exchange; otherwise 0.9 / number of present workers.
        options: see BoxOptimizer.

    Attributes:
        is_fused: whether an exchange is one atomic operation. An exchange that reads first and
            adds later has a smaller default moving rate.
    """

    is_fused = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        period: int,
        moving_rate: float | None,
        **options: Unpack[BoxOptions],
    ) -> None:
        self.period = whole("period", period)
        self._moving_rate = check_moving_rate(moving_rate)
        super().__init__(optimizer, box, name, **options)

    @property
    def moving_rate(self) -> float:
        """Share of the distance that worker and center move in the next exchange."""
        if self._moving_rate is not None:
            return self._moving_rate
        return FUSED_MOVING_RATE if self.is_fused else unfused_moving_rate(self.team.workers)
