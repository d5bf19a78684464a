"""A warning if the ranks have equal gradients, because they read the same batches.

A script with a fixed seed draws the same batches on every rank. The mean of equal gradients is
the gradient of one rank, so all ranks together train what one would.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import torch

from smbox_torch.averaging.buckets import LOW_PRECISION

__all__ = ["EqualGradientsWarning", "FirstGradient"]

ROUNDINGS: Final = 4.0
"""Rounding errors of a mean of equal numbers, besides one for each rank."""


class EqualGradientsWarning(UserWarning):
    """All ranks have the same gradients: they read the same batches."""


class FirstGradient:
    """A rank's own gradient of its largest parameter, in the first round that shows something.

    A gradient of zeros (the first one of LoRA) or with infinite values (the first ones of a
    GradScaler) may be equal on other batches, too: the next round is compared instead.

    Args:
        parameters: those whose gradients are averaged.

    Attributes:
        is_over: whether no round is compared any more.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._index = max(range(len(parameters)), key=lambda index: parameters[index].numel())
        self._own: torch.Tensor | None = None
        self.is_over = False

    def take(self, index: int) -> None:
        """Keep the gradient of a parameter, if it is the one; called before it is averaged."""
        gradient = self._parameters[index].grad
        if not self.is_over and index == self._index and gradient is not None:
            self._own = gradient.detach().clone()

    def compare(self, ranks: int) -> None:
        """Warn if the mean equals the own gradient; called when the gradients are the mean.

        Args:
            ranks: number of ranks that had batches in the round.
        """
        mean, own = self._parameters[self._index].grad, self._own
        self._own = None
        self.is_over |= ranks == 1
        if self.is_over or own is None or mean is None:
            return
        if not own.any() or not own.isfinite().all():
            return
        self.is_over = True
        # 16-bit gradients are averaged in 32 bits, so their mean is rounded only once.
        summed = torch.float32 if own.dtype in LOW_PRECISION else own.dtype
        rtol = (ROUNDINGS + ranks) * torch.finfo(summed).eps
        if torch.allclose(own, mean, rtol=rtol, atol=0.0):
            warnings.warn(
                f"the first gradients of {ranks} ranks are equal: they read the same batches,"
                " and all together train what one would alone. Use"
                " smbox_torch.distributed_sampler, or call torch.manual_seed(seed + rank)"
                " before the first batch",
                EqualGradientsWarning,
                stacklevel=2,
            )
