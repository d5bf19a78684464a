"""Strides of gradients and optimizer state, which must be those of their parameters.

Wrapping makes parameters contiguous. Gradients and state from before, a state that is loaded
later, and gradients of ``torch.autograd.grad`` may have other strides (channels_last). torch's
fused optimizers on the CPU ignore strides: they would step each element with the gradient or
momentum of another one.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["match_gradients", "match_state"]


def match_state(optimizer: torch.optim.Optimizer) -> None:
    """Give state tensors the strides of their parameters; values are kept."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            state.update({key: _like(parameter, found) for key, found in state.items()})


def match_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Give gradients of fused groups the strides of their parameters; values are kept."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            parameter.grad = _like(parameter, parameter.grad)


def _like(parameter: torch.Tensor, found: Any) -> Any:
    """Return a tensor of the parameter's shape with its strides, anything else unchanged."""
    if not isinstance(found, torch.Tensor) or found.shape != parameter.shape:
        return found
    if found.layout is not torch.strided or found.stride() == parameter.stride():
        return found
    return torch.empty_like(parameter, dtype=found.dtype, device=found.device).copy_(found)
