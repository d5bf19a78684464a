"""States whose tensors are on a device, as ``torch.load(..., map_location=device)`` returns."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from smbox.testing.model_box import ModelBox
from smbox_torch import ServerDownpour

torch.set_num_threads(1)


class OnDevice(torch.Tensor):
    """A tensor that says that it is on a device; the CPU cannot read its memory."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device="cuda"
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, _, args=(), kwargs=None):
        inner = tree_map_only(cls, lambda tensor: tensor.inner, args)
        found = function(*inner, **(kwargs or {}))
        return cls(found) if function is torch.ops.aten.detach.default else found


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on a device; a number stays, because ``int()`` can read it there."""
    return OnDevice(tensor) if tensor.dim() else tensor


def test_a_state_on_a_device_is_loaded_as_one_on_the_cpu(lazy, worker, center):
    more = {"server": "momentum"} if lazy.make is ServerDownpour else {}
    wrap = partial(worker, kind=lazy.make, **lazy.settings, **more)
    first = wrap(ModelBox())
    first.run(3)
    state = copy.deepcopy(first.optimizer.state_dict())
    inner = state.pop("inner")
    found = []
    for each in (state, tree_map_only(torch.Tensor, moved, state)):
        box = ModelBox()
        one = wrap(box)
        one.optimizer.load_state_dict({**each, "inner": copy.deepcopy(inner)})
        one.run(1)
        one.optimizer.close()
        found.append((one.values(), center(box)))
    for values in zip(*found, strict=True):
        np.testing.assert_array_equal(*values)
