"""Tensors in memory that all workers of a host share, and shared optimizer state.

A shared tensor is a view of a region with ``consistency="none"``: loads and stores access the
memory directly, without lock, journal or message. Only single words are atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from smbox.box import Box
from smbox.errors import ConfigError
from smbox.region import Region
from smbox_torch.adapter import as_array, dtype_name
from smbox_torch.model.flat import own_storage

__all__ = ["SharedState", "share"]

STATE_KEYS: Final[dict[type[torch.optim.Optimizer], tuple[str, ...]]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.Adagrad: ("step", "sum"),
    torch.optim.Adam: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
}
"""Names of the state tensors that each optimizer keeps per parameter."""


def share(box: Box, name: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return shared tensors of the same shapes and dtypes.

    Args:
        box: the box of a memory node on this host.
        name: prefix of the regions, ``NAME.DTYPE``.
        tensors: tensors on the CPU; the values of the first worker initialize the regions.

    Raises:
        ConfigError: this process cannot map the node's memory.
        LayoutMismatchError: regions of this name have another layout.
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
        memory = torch.from_numpy(_mapped(region).view(np.uint8)).view(dtype)
        pieces = torch.split(memory, [tensors[index].numel() for index in members])
        for index, piece in zip(members, pieces, strict=True):
            views[index] = own_storage(piece.view(tensors[index].shape))
    return [views[index] for index in range(len(tensors))]


def _mapped(region: Region) -> NDArray[Any]:
    """Return a region's own memory.

    Raises:
        ConfigError: this process cannot map it.
    """
    try:
        return region.local()
    except ConfigError as error:
        raise ConfigError(
            "the workers share one model in mapped memory: run all of them on the memory node's"
            f" host (smbox run --per-node N), or use EASGD; {error.message}",
            **error.facts,
        ) from error


class SharedState:
    """The state of an optimizer, including ``step``, in memory that all workers share.

    The optimizer uses it from :meth:`install` on.

    Args:
        box: the box of a memory node on this host.
        name: prefix of the regions.
        optimizer: SGD, Adagrad, Adam or AdamW.

    Raises:
        ConfigError: another optimizer, or one whose initial state is not zero.
    """

    def __init__(self, box: Box, name: str, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        fresh = _fresh(optimizer)
        self._views: dict[str, dict[torch.nn.Parameter, torch.Tensor]] = {}
        for key in dict.fromkeys(key for state in fresh.values() for key in state):
            holders = [parameter for parameter, state in fresh.items() if key in state]
            views = share(box, f"{name}.{key}", [fresh[holder][key] for holder in holders])
            self._views[key] = dict(zip(holders, views, strict=True))

    def install(self) -> None:
        """Make the optimizer use the shared tensors."""
        for key, views in self._views.items():
            for parameter, view in views.items():
                self._optimizer.state[parameter][key] = view

    def check(self) -> None:
        """Raise ConfigError if a step would use state that is not shared.

        A parameter was unfrozen, a scheduler or a loaded state has turned on a momentum, or the
        state was cleared.
        """
        keys = STATE_KEYS[type(self._optimizer)]
        for group in self._optimizer.param_groups:
            kept = _kept(self._optimizer, group, keys)
            wanted = {key: self._views.get(key, {}) for key in kept}
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._check_one(parameter, wanted)

    def _check_one(
        self,
        parameter: torch.nn.Parameter,
        wanted: dict[str, dict[torch.nn.Parameter, torch.Tensor]],
    ) -> None:
        if any(parameter not in views for views in wanted.values()):
            raise ConfigError(
                "the state of a parameter would not be shared: unfreeze it, and set"
                " momentum and amsgrad (OneCycleLR sets a momentum), before the"
                " optimizer is wrapped, or use state='private'",
                shape=tuple(parameter.shape),
            )
        held = self._optimizer.state.get(parameter, {})
        if any(held.get(key) is not views[parameter] for key, views in wanted.items()):
            raise ConfigError(
                "the shared state of a parameter was removed or replaced: to begin anew, set"
                " its tensors to zero in place, or use state='private'",
                shape=tuple(parameter.shape),
            )

    @torch.no_grad()
    def store(self) -> None:
        """Copy the optimizer's state, after it has loaded one, to the shared tensors."""
        for key, views in self._views.items():
            for parameter, view in views.items():
                if key in self._optimizer.state[parameter]:
                    view.copy_(self._optimizer.state[parameter][key])

    def detach(self) -> None:
        """Give the optimizer private copies of its state."""
        for key, views in self._views.items():
            for parameter, view in views.items():
                self._optimizer.state[parameter][key] = view.clone()


def _fresh(optimizer: torch.optim.Optimizer) -> dict[torch.nn.Parameter, dict[str, Any]]:
    """Return the current or initial state of each parameter that requires a gradient."""
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
    kept = _kept(optimizer, group, keys)
    if kept and group.get("dampening"):
        raise ConfigError(
            "SGD does not dampen its first momentum, so a shared momentum of zero differs:"
            " use dampening=0 or state='private'"
        )
    held = optimizer.state.get(parameter, {})
    return {key: held[key] if key in held else _zero(key, parameter) for key in kept}


def _kept(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], keys: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of the state that an optimizer keeps for the parameters of a group."""
    if isinstance(optimizer, torch.optim.SGD) and group["momentum"] == 0:
        return ()
    return (*keys, "max_exp_avg_sq") if group.get("amsgrad") else keys


def _zero(key: str, parameter: torch.nn.Parameter) -> torch.Tensor:
    if key == "step":
        return torch.zeros((), dtype=torch.float32, device="cpu")
    return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
