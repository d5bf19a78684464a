"""ModuleSlots: detects tensors or modules of a model that were replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from smbox.errors import ConfigError

__all__ = ["ModuleSlots"]


class ModuleSlots:
    """The dict entries of a model's modules that hold some tensors.

    A check of these entries is faster than a walk over all modules.

    Args:
        model: the model that holds the tensors; None: nothing is checked.
        tensors: parameters and buffers of the model that must not be replaced.
    """

    def __init__(self, model: torch.nn.Module | None, tensors: Iterable[torch.Tensor]) -> None:
        self._slots = [] if model is None else _slots(model, {id(each) for each in tensors})

    def check(self) -> None:
        """Raise ConfigError if a tensor, or a module that holds one, was replaced."""
        for home, name, kept in self._slots:
            if home.get(name) is not kept:
                raise ConfigError(
                    "a parameter, buffer or module of the model was replaced after the"
                    " optimizer was wrapped: change tensors in place"
                    " (tensor.copy_(...)), or replace them first, then wrap",
                    name=name,
                )


def _slots(model: torch.nn.Module, kept: set[int]) -> list[tuple[dict[str, Any], str, Any]]:
    """Return dict, key and value of each entry that holds one of these tensors (by id).

    The entries of modules that hold some of them, in dicts of their parents, are included.
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
