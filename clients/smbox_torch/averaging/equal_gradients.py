"""A warning if the ranks have equal gradients, because they read the same batches.

A script with a fixed seed draws the same batches on every rank. The mean of equal gradients is
the gradient of one rank, so all ranks together train what one would.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import torch

__all__ = ["EqualGradientsWarning", "FirstGradient"]

ROUNDINGS: Final = 4.0
"""Distance at which a mean of equal numbers still equals them, in units of their rounding."""


class EqualGradientsWarning(UserWarning):
    """All ranks have the same gradients: they read the same batches."""


class FirstGradient:
    """A rank's own gradient in its first round, of its largest parameter.

    Args:
        parameters: those whose gradients are averaged.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._index = max(range(len(parameters)), key=lambda index: parameters[index].numel())
        self._own: torch.Tensor | None = None
        self._is_over = False

    def take(self, index: int) -> None:
        """Keep the gradient of a parameter, if it is the one; called before it is averaged."""
        gradient = self._parameters[index].grad
        if not self._is_over and index == self._index and gradient is not None:
            self._own = gradient.detach().clone()

    def compare(self, ranks: int) -> None:
        """Warn if the mean equals the own gradient; called when the gradients are the mean.

        Args:
            ranks: number of ranks that had batches in the round.
        """
        mean, own = self._parameters[self._index].grad, self._own
        self._own, self._is_over = None, True
        if ranks == 1 or own is None or mean is None or not own.any():
            return
        rtol = ROUNDINGS * torch.finfo(own.dtype).eps
        if torch.allclose(own, mean, rtol=rtol, atol=0.0):
            warnings.warn(
                f"the first gradients of {ranks} ranks are equal: they read the same batches,"
                " and all together train what one would alone. Use"
                " smbox_torch.distributed_sampler, or call torch.manual_seed(seed + rank)"
                " before the first batch",
                EqualGradientsWarning,
                stacklevel=2,
            )
