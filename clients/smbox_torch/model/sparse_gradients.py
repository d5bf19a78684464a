"""Checks that an optimizer supports its gradients: sparse (``sparse=True``) or dense ones."""

from __future__ import annotations

from typing import Any, Final

import torch

from smbox.errors import ConfigError

__all__ = ["check_dense", "check_sparse"]

SPARSE: Final = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam)
"""Optimizers of torch that support sparse gradients, without weight decay and ``fused``."""

DENSE_ONLY: Final = tuple(
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if kind is not torch.optim.Optimizer and kind not in SPARSE
)
"""Optimizers that raise for a sparse gradient, possibly after a step of other parameters."""


def check_sparse(optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if a gradient is sparse, or dense, and the optimizer rejects that."""
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.SparseAdam) and _has(group, is_sparse=False):
            raise ConfigError(
                "a gradient is dense, and SparseAdam steps with sparse ones only: give it the"
                " parameters of sparse layers, and wrap a second optimizer for the others"
            )
        needs_dense = isinstance(optimizer, DENSE_ONLY)
        needs_dense |= bool(group.get("weight_decay") or group.get("fused"))
        if needs_dense and _has(group, is_sparse=True):
            raise ConfigError(
                "a gradient is sparse, and this optimizer, its weight decay or fused=True takes"
                " dense ones only: use SGD, Adagrad or SparseAdam with weight_decay=0 and"
                " without fused=True for its group",
                optimizer=type(optimizer).__name__,
            )


def _has(group: dict[str, Any], *, is_sparse: bool) -> bool:
    """Return whether a group has such a gradient."""
    gradients = (parameter.grad for parameter in group["params"])
    return any(each is not None and each.is_sparse == is_sparse for each in gradients)


def check_dense(optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError for an optimizer that rejects dense gradients.

    Algorithms whose steps use sums of gradients call it; such sums are dense.
    """
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ConfigError(
            "SparseAdam steps with sparse gradients only, and this algorithm makes them dense:"
            " use Adam or Adagrad, or an algorithm that keeps them (Hogwild, EASGD, Downpour)"
        )
