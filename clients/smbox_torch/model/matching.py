"""Matching of the tensors of an optimizer with those of another model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

import torch

from smbox.errors import ConfigError

__all__ = ["Names", "counterparts", "in_order", "names_of", "namesakes"]

Names = Mapping[int, tuple[str, ...]]
"""The known names of tensors, by id; a tied tensor has several."""

WRAPPERS: Final = frozenset({"module", "_orig_mod", "_forward_module"})
"""Parts that DistributedDataParallel, torch.compile and Fabric add to names, at any depth."""


def names_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> Names:
    """Return the known names of parameters and buffers."""
    names: dict[int, tuple[str, ...]] = {
        id(parameter): (name,)
        for group in optimizer.param_groups
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }
    if model is not None:
        kinds = (model.named_parameters, model.named_buffers)
        named = list(chain(*(kind(remove_duplicate=False) for kind in kinds)))
        names |= {id(tensor): () for _, tensor in named}
        for name, tensor in named:
            names[id(tensor)] += (name,)
    return names


def counterparts(
    own: Sequence[torch.Tensor],
    names: Names,
    theirs: Mapping[str, torch.Tensor],
    *,
    groups: int = 1,
) -> dict[int, torch.Tensor]:
    """Return the corresponding tensor of another model for the id of each own tensor.

    Args:
        own: parameters or buffers, each once.
        names: their known names; parts that wrappers of models (DDP, torch.compile) added are
            ignored.
        theirs: parameters or buffers of a model, by name and in its order; it may be the own
            model.
        groups: number of groups of the optimizer, in whose order the own tensors are.

    Raises:
        ConfigError: the tensors differ, only some of the names occur, a tied tensor is not tied
            in the model, or there are several groups without names, so that the order in the
            model is unknown.
    """
    if {id(tensor) for tensor in own} <= {id(tensor) for tensor in theirs.values()}:
        return {id(tensor): tensor for tensor in own}
    wanted = [names.get(id(tensor), ("",))[0] for tensor in own]
    missing = wanted
    spellings: list[tuple[Mapping[str, torch.Tensor], Callable[[str], str]]]
    spellings = [(theirs, str), (unwrapped(theirs), bare)]
    for known, spelled in spellings:
        keys = [spelled(name) for name in wanted]
        missing = [key for key in keys if key not in known]
        if not missing and len(set(keys)) == len(keys):
            found = in_order(own, [known[key] for key in keys])
            others = {key: [*map(spelled, names[key][1:])] for key in found}
            _demand_tied(found, others, known)
            return found
    if 0 < len(missing) < len(own) and all(wanted):
        raise ConfigError(
            "the model has some of the optimizer's parameters or buffers by name, and lacks"
            " others: build the model as the workers do",
            missing=missing,
        )
    if groups > 1:
        raise ConfigError(
            "the optimizer has several groups, so its parameters cannot be matched with this"
            " model's by order: build it from named_parameters(), wrap it with model= if the"
            " class accepts it, or pass the worker's own model",
            groups=groups,
        )
    return in_order(own, list(theirs.values()))


def namesakes(
    own: Sequence[torch.Tensor],
    names: Names,
    theirs: Mapping[str, torch.Tensor],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of a tensor of another model and the own one of its name and shape."""
    known = unwrapped(theirs)
    named = [(name, tensor) for tensor in own for name in names.get(id(tensor), ())]
    pairs = [(known.get(bare(name)), tensor) for name, tensor in named]
    return [(to, each) for to, each in pairs if to is not None and to.shape == each.shape]


def _demand_tied(
    found: Mapping[int, torch.Tensor],
    others: Mapping[int, Sequence[str]],
    theirs: Mapping[str, torch.Tensor],
) -> None:
    """Raise ConfigError if the model has a second tensor for another name of an own tensor."""
    untied = [
        name
        for key, target in found.items()
        for name in others[key]
        if theirs.get(name, target) is not target
    ]
    if untied:
        raise ConfigError(
            "the model has separate parameters or buffers where the optimizer's model has tied"
            " ones: tie them as the workers do",
            untied=untied,
        )


def bare(name: str) -> str:
    """Return a name without the parts that wrappers of models added."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def unwrapped(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by their bare names, without those whose bare name is not unique."""
    found = Counter(map(bare, named))
    return {bare(name): each for name, each in named.items() if found[bare(name)] == 1}


def in_order(
    own: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return the target for the id of each own tensor; raise ConfigError if shapes differ."""
    mine, theirs = ([tuple(tensor.shape) for tensor in each] for each in (own, targets))
    if mine != theirs:
        raise ConfigError("the model's tensors do not match the optimizer's", shapes=theirs)
    return {id(tensor): target for tensor, target in zip(own, targets, strict=True)}
