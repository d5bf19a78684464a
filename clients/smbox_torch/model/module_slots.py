"""Where a model keeps its tensors, and whether they are still there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from smbox.errors import ConfigError

__all__ = ["ModuleSlots"]


class ModuleSlots:
    """The places of some tensors in a model; a look at them costs less than a walk over it.

    Args:
        model: holds the tensors; None: there is nothing to look at.
        tensors: its parameters and buffers that must stay the tensors that they are now.
    """

    def __init__(self, model: torch.nn.Module | None, tensors: Iterable[torch.Tensor]) -> None:
        self._slots = [] if model is None else _slots(model, {id(each) for each in tensors})

    def check(self) -> None:
        """Raise ConfigError if a tensor, or a module that holds one, is another one now."""
        for home, name, kept in self._slots:
            if home.get(name) is not kept:
                raise ConfigError(
                    "a parameter, buffer or module of the model is another one than it was"
                    " when the optimizer was wrapped: change tensors in place"
                    " (tensor.copy_(...)), or replace them first, then wrap",
                    name=name,
                )


def _slots(model: torch.nn.Module, kept: set[int]) -> list[tuple[dict[str, Any], str, Any]]:
    """Return where a model keeps the tensors of these ids: dict, name, what is there.

    A module that holds some of them is in a dict of its parent's.
    """
    kept = kept | {
        id(module)
        for module in model.modules()
        if any(id(each) in kept for each in (*module.parameters(), *module.buffers()))
    }
    return [
        (vars(module)[kind], name, each)
        for module in model.modules()
        for kind in ("_parameters", "_buffers", "_modules")
        for name, each in vars(module)[kind].items()
        if id(each) in kept
    ]
