"""The check that an optimizer supports sparse gradients (``nn.Embedding(sparse=True)``)."""

from __future__ import annotations

from typing import Final

import torch

from smbox.errors import ConfigError

__all__ = ["check_sparse"]

SPARSE: Final = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam)
"""Optimizers of torch that support sparse gradients, without weight decay."""

DENSE_ONLY: Final = tuple(
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if kind is not torch.optim.Optimizer and kind not in SPARSE
)
"""Optimizers that raise for a sparse gradient, possibly after a step of other parameters."""


def check_sparse(optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if a gradient is sparse and the optimizer does not support that."""
    for group in optimizer.param_groups:
        is_dense_only = isinstance(optimizer, DENSE_ONLY) or bool(group.get("weight_decay"))
        if is_dense_only and any(
            p.grad is not None and p.grad.is_sparse for p in group["params"]
        ):
            raise ConfigError(
                "a gradient is sparse, and this optimizer or its weight decay changes every "
                "element: use SGD, Adagrad or SparseAdam with weight_decay=0 for its group",
                optimizer=type(optimizer).__name__,
            )
