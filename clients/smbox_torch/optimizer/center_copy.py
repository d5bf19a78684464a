"""A model filled with what an optimizer's workers share: parameters, statistics, counts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from smbox_torch.model.flat import named_counts, named_floats, unique
from smbox_torch.model.matching import counterparts
from smbox_torch.optimizer.center import Center

__all__ = ["CenterCopy"]


class CenterCopy:
    """Which tensors of a model get which values; making one changes nothing.

    Args:
        model: to be filled.
        names: of the optimizer's parameters and of its own model's buffers, by id.
    """

    def __init__(self, model: torch.nn.Module, names: Mapping[int, str]) -> None:
        self._model = model
        self._names = names
        self._filled: list[tuple[Center, dict[int, torch.Tensor]]] = []
        self._counts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def parameters(self, center: Center, *, groups: int) -> None:
        """Take a center of parameters, in the order of so many groups of the optimizer.

        Raises:
            ConfigError: the model has others; see :func:`counterparts`.
        """
        theirs = dict(self._model.named_parameters())
        own = center.flat.tensors
        self._filled.append((center, counterparts(own, self._names, theirs, groups=groups)))

    def statistics(self, center: Center) -> None:
        """Take a center of floating-point buffers; ConfigError if the model has others."""
        theirs = named_floats(self._model)
        self._filled.append((center, counterparts(center.flat.tensors, self._names, theirs)))

    def counts(self, own: torch.nn.Module) -> None:
        """Take the integer buffers of a model; ConfigError if the filled one has others."""
        counts = unique(named_counts(own).values())
        if counts:
            targets = counterparts(counts, self._names, named_counts(self._model))
            self._counts += [(targets[id(count)], count) for count in counts]

    @torch.no_grad()
    def fill(self) -> None:
        """Copy everything."""
        for center, targets in self._filled:
            for (buffer, _), values in zip(center, center.values().values(), strict=True):
                for tensor, source in zip(buffer.tensors, buffer.split(values), strict=True):
                    targets[id(tensor)].copy_(source)
        for target, count in self._counts:
            target.copy_(count)
