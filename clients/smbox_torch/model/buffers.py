"""A model's buffers: statistics that can be averaged, batch counts, and all others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import torch

from smbox_torch.model.flat import unique
from smbox_torch.model.precision import FLOATS

__all__ = ["count_buffers", "float_buffers", "named_counts", "named_floats", "other_buffers"]

INTEGERS: Final = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def named_floats(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's floating-point buffers by name."""
    return _named_buffers(model, FLOATS.values())


def named_counts(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's integer buffers by name, such as the batch counts of batch norms."""
    return _named_buffers(model, INTEGERS)


def _named_buffers(
    model: torch.nn.Module, dtypes: Collection[torch.dtype]
) -> dict[str, torch.Tensor]:
    dense = {n: b for n, b in model.named_buffers() if b.layout is torch.strided}
    return {name: b for name, b in dense.items() if b.dtype in dtypes and b.numel()}


def float_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return a model's floating-point buffers that can be averaged: batch-norm statistics.

    Sparse ones, those of 8 bits, and those with infinities when the model is wrapped (masks)
    are excluded: they are not exchanged. These must be the same buffers on all workers.
    """
    return unique(b for b in named_floats(model).values() if not b.isinf().any())


def count_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return a model's integer buffers, each once, such as the batch counts of batch norms."""
    return unique(named_counts(model).values())


def other_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return a model's other buffers, such as the batch counts of batch norms."""
    averaged = {id(buffer) for buffer in float_buffers(model)}
    return unique(b for b in model.buffers() if id(b) not in averaged)
