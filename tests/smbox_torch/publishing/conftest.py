"""A tensor of a subclass that has no memory of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils._pytree import tree_map_only


class Wrapped(torch.Tensor):
    """Made of other tensors, as DTensor and the weights of quantization libraries are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, _, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        inner = tree_map_only(cls, lambda tensor: tensor.inner, args)
        return function(*inner, **(kwargs or {}))


@pytest.fixture
def wrapped() -> Callable[[torch.Tensor], torch.Tensor]:
    """``wrapped(tensor)``: a tensor of a subclass, with the same values."""
    return Wrapped
