"""Tensors that all workers of a host hold in common, and optimizer state made of them.

A tensor is shared by making it a view of a region with ``consistency="none"``: loads and
stores go straight to the memory, without lock, journal or message, atomic by word only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.adapter import as_array, dtype_name
from smbox_torch.model.flat import own_storage

__all__ = ["SharedState", "share"]

STATE_KEYS: Final[dict[type[torch.optim.Optimizer], tuple[str, ...]]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adagrad: ("step", "sum"),
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
}
"""What each optimizer keeps for a parameter, under torch's names."""


def share(box: Box, name: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of the same shapes and dtypes that all workers of the name share.

    Args:
        box: of a memory node on this host.
        name: prefix of the regions, ``NAME.DTYPE``.
        tensors: on the CPU; the values of the worker that comes first become the shared ones.

    Raises:
        ConfigError: this process cannot map the node's memory.
        LayoutMismatchError: others share tensors of another layout under this name.
    """
    views: dict[int, torch.Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        members = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        values = torch.cat([tensors[index].detach().reshape(-1) for index in members])
        region = box.create(
            f"{name}.{dtype_name(dtype)}",
            tuple(values.shape),
            dtype_name(dtype),
            as_array(values),
            exist_ok=True,
            consistency="none",
        )
        memory = torch.from_numpy(region.local().view(np.uint8)).view(dtype)
        pieces = torch.split(memory, [tensors[index].numel() for index in members])
        for index, piece in zip(members, pieces, strict=True):
            views[index] = own_storage(piece.view(tensors[index].shape))
    return [views[index] for index in range(len(tensors))]


class SharedState:
    """The state of an optimizer in memory that all workers share, its ``step`` too.

    Args:
        box: of a memory node on this host.
        name: prefix of the regions.
        optimizer: SGD, Adagrad, Adam or AdamW.

    Raises:
        ConfigError: another optimizer, or one whose state cannot begin as zeros.
    """

    def __init__(self, box: Box, name: str, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        fresh = _fresh(optimizer)
        self._views: dict[str, dict[torch.nn.Parameter, torch.Tensor]] = {}
        for key in dict.fromkeys(key for state in fresh.values() for key in state):
            holders = [parameter for parameter, state in fresh.items() if key in state]
            views = share(box, f"{name}.{key}", [fresh[holder][key] for holder in holders])
            self._views[key] = dict(zip(holders, views, strict=True))
        self.install()

    def install(self) -> None:
        """Make the optimizer work on the shared tensors."""
        for key, views in self._views.items():
            for parameter, view in views.items():
                self._optimizer.state[parameter][key] = view

    @torch.no_grad()
    def store(self) -> None:
        """Copy what the optimizer holds, after it has loaded a state, to the shared tensors."""
        for key, views in self._views.items():
            for parameter, view in views.items():
                if key in self._optimizer.state[parameter]:
                    view.copy_(self._optimizer.state[parameter][key])

    def detach(self) -> None:
        """Give the optimizer copies of its own."""
        for key, views in self._views.items():
            for parameter, view in views.items():
                self._optimizer.state[parameter][key] = view.clone()


def _fresh(optimizer: torch.optim.Optimizer) -> dict[torch.nn.Parameter, dict[str, Any]]:
    """Return the state of each parameter that requires a gradient, as it is or will begin."""
    keys = STATE_KEYS.get(type(optimizer))
    if keys is None:
        known = ", ".join(kind.__name__ for kind in STATE_KEYS)
        raise ConfigError(
            f"only the state of {known} can be shared; use state='private'",
            optimizer=type(optimizer).__name__,
        )
    return {
        parameter: _begin(optimizer, group, parameter, keys)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    }


def _begin(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: torch.nn.Parameter,
    keys: tuple[str, ...],
) -> dict[str, torch.Tensor]:
    if isinstance(optimizer, torch.optim.SGD):
        if group["momentum"] == 0:
            return {}
        if group["dampening"] != 0:
            raise ConfigError(
                "SGD's first momentum is not dampened, so it cannot begin as a shared zero; "
                "use dampening=0 or state='private'"
            )
    if group.get("amsgrad"):
        keys = (*keys, "max_exp_avg_sq")
    held = optimizer.state.get(parameter, {})
    return {key: held[key] if key in held else _zero(key, parameter) for key in keys}


def _zero(key: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    if key == "step":
        return torch.zeros((), dtype=torch.float32)
    return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
