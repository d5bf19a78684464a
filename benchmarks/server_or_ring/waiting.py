"""A model of real sizes that waits where it would compute, layer by layer.

Each layer waits its share of the forward pass, then in backward its share of that, and then
hands out its gradients: averaging that begins inside backward, as DDP's, finds the gradients
at the times at which a real model would have them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from server_or_ring.layers import Layer
from smbox_torch.planning.methods import BACKWARD

GRADIENT = 1e-3


class Waiting(torch.nn.Module):
    """A model that waits.

    Args:
        layers: of the whole model.
        scale: divides the number of elements of each parameter.

    Attributes:
        wait_s: of a forward and backward pass; may be changed.
    """

    def __init__(self, layers: Sequence[Layer], scale: float) -> None:
        super().__init__()
        self.wait_s = 0.0
        self._due_s = 0.0
        self._shares = [layer.share for layer in layers]
        self.weights = torch.nn.ModuleList(
            torch.nn.ParameterList(torch.zeros(math.ceil(n / scale)) for n in layer.sizes)
            for layer in layers
        )

    def forward(self) -> torch.Tensor:
        """Wait for the forward pass; return a loss."""
        self._due_s = time.monotonic()
        passed = torch.zeros((), requires_grad=True)
        for weights, share in zip(self.weights, self._shares, strict=True):
            passed = _Wait.apply(passed, self, share, *weights)
        return passed

    def wait(self, share: float) -> None:
        """Wait until a share of the passes is due.

        What autograd and hooks take is part of it, as it is of a pass that was measured.
        """
        self._due_s += share * self.wait_s
        left_s = self._due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, passed: torch.Tensor, waiting: Waiting, share: float, *weights: Any
    ) -> torch.Tensor:
        ctx.waiting, ctx.share = waiting, share
        ctx.save_for_backward(*weights)
        waiting.wait((1 - BACKWARD) * share)
        return passed.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.waiting.wait(BACKWARD * ctx.share)
        made = (torch.full_like(weight, GRADIENT) for weight in ctx.saved_tensors)
        return gradient, None, None, *made
