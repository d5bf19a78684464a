"""Which tensor of another model is which of the optimizer's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import torch

from smbox.errors import ConfigError

__all__ = ["counterparts", "in_order", "names_of"]

WRAPPERS: Final = frozenset({"module", "_orig_mod"})
"""What DistributedDataParallel and torch.compile put into names, at any depth."""


def names_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> dict[int, str]:
    """Return the names of parameters and buffers, by id, as far as they are known."""
    names = {
        id(parameter): name
        for group in optimizer.param_groups
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }
    if model is not None:
        named = chain(model.named_parameters(), model.named_buffers())
        names |= {id(tensor): name for name, tensor in named}
    return names


def counterparts(
    own: Sequence[torch.Tensor],
    names: Mapping[int, str],
    theirs: Mapping[str, torch.Tensor],
    *,
    groups: int = 1,
) -> dict[int, torch.Tensor]:
    """Return another model's tensor for each (id) of the own ones.

    Args:
        own: parameters or buffers, each once.
        names: of them, by id, where they are known; those that wrappers of models (DDP,
            torch.compile) gave count as those without.
        theirs: parameters or buffers of a model, by name and in its order; it may be the own
            model.
        groups: of the optimizer, in whose order the own ones are.

    Raises:
        ConfigError: they differ, or of several groups without names the order in the model
            is unknown.
    """
    if {id(tensor) for tensor in own} <= {id(tensor) for tensor in theirs.values()}:
        return {id(tensor): tensor for tensor in own}
    wanted = [names.get(id(tensor), "") for tensor in own]
    for known in (theirs, unwrapped(theirs)):
        keys = wanted if known is theirs else [bare(name) for name in wanted]
        if all(key in known for key in keys) and len(set(keys)) == len(keys):
            return in_order(own, [known[key] for key in keys])
    if groups > 1:
        raise ConfigError(
            "the optimizer has several groups, so the order of its parameters tells not "
            "which of this model's they are: build it from named_parameters(), wrap it with "
            "model= where that is taken, or fill the worker's own model",
            groups=groups,
        )
    return in_order(own, list(theirs.values()))


def bare(name: str) -> str:
    """Return a name without the parts that wrappers of models put into it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def unwrapped(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by their bare names, without those of which several have one."""
    found = Counter(map(bare, named))
    return {bare(name): each for name, each in named.items() if found[bare(name)] == 1}


def in_order(
    own: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return the target of each (id) of the own tensors; ConfigError if shapes differ."""
    mine, theirs = ([tuple(tensor.shape) for tensor in each] for each in (own, targets))
    if mine != theirs:
        raise ConfigError("the model's tensors are not the optimizer's", shapes=theirs)
    return {id(tensor): target for tensor, target in zip(own, targets, strict=True)}
