"""Which tensor of another model is which of the optimizer's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from smbox.errors import ConfigError

__all__ = ["counterparts", "in_order", "names_of"]


def names_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> dict[int, str]:
    """Return the names of parameters, by id, as far as they are known."""
    names = {
        id(parameter): name
        for group in optimizer.param_groups
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }
    if model is not None:
        names |= {id(parameter): name for name, parameter in model.named_parameters()}
    return names


def counterparts(
    optimizer: torch.optim.Optimizer,
    own: Sequence[torch.Tensor],
    names: Mapping[int, str],
    model: torch.nn.Module,
) -> dict[int, torch.Tensor]:
    """Return the model's parameter for each (id) of the optimizer's.

    Args:
        optimizer: whose groups hold the parameters.
        own: the parameters, each once, in the order of the groups.
        names: of them, by id, where they are known.
        model: the worker's own, or another of the same parameters.

    Raises:
        ConfigError: the parameters differ, or of several groups without names the order in
            the model is unknown.
    """
    named = dict(model.named_parameters())
    ids = {id(parameter) for parameter in own}
    if any(id(parameter) in ids for parameter in named.values()):
        return {id(parameter): parameter for parameter in own}
    wanted = [names.get(id(parameter), "") for parameter in own]
    if all(name in named for name in wanted):
        return in_order(own, [named[name] for name in wanted])
    if len(optimizer.param_groups) > 1:
        raise ConfigError(
            "the optimizer has several groups, so the order of its parameters tells not "
            "which of this model's they are: build it from named_parameters(), wrap it with "
            "model= where that is taken, or fill the worker's own model",
            groups=len(optimizer.param_groups),
        )
    return in_order(own, list(named.values()))


def in_order(
    own: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return the target of each (id) of the own tensors; ConfigError if shapes differ."""
    mine, theirs = ([tuple(tensor.shape) for tensor in each] for each in (own, targets))
    if mine != theirs:
        raise ConfigError("the model's parameters are not the optimizer's", shapes=theirs)
    return {id(tensor): target for tensor, target in zip(own, targets, strict=True)}
