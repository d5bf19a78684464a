"""CenterCopy: copies parameters, statistics and counts of a center into a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smbox_torch.model.flat import named_counts, named_floats, unique
from smbox_torch.model.matching import Names, counterparts, namesakes
from smbox_torch.model.others import other_parameters
from smbox_torch.optimizer.center import Center

__all__ = ["CenterCopy"]


class CenterCopy:
    """A copy in preparation: matches tensors first, and changes the model only in ``fill``.

    Args:
        model: the target.
        names: names of the optimizer's parameters and of its own model's buffers.
    """

    def __init__(self, model: torch.nn.Module, names: Names) -> None:
        self._model = model
        self._names = names
        self._filled: list[tuple[Center, dict[int, torch.Tensor]]] = []
        self._counts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._others: list[tuple[torch.Tensor, torch.Tensor]] = []

    def parameters(self, center: Center, *, groups: int) -> None:
        """Add the center of the parameters to the copy.

        Args:
            center: the center.
            groups: number of groups of the optimizer, in whose order the parameters are.

        Raises:
            ConfigError: the model has other parameters; see :func:`counterparts`.
        """
        theirs = dict(self._model.named_parameters())
        own = center.flat.tensors
        self._filled.append((center, counterparts(own, self._names, theirs, groups=groups)))

    def statistics(self, center: Center) -> None:
        """Add the center of the statistics; raise ConfigError if the model has others."""
        theirs = named_floats(self._model)
        self._filled.append((center, counterparts(center.flat.tensors, self._names, theirs)))

    def counts(self, own: torch.nn.Module) -> None:
        """Add the integer buffers of a model; raise ConfigError if the target has others."""
        counts = unique(named_counts(own).values())
        if counts:
            targets = counterparts(counts, self._names, named_counts(self._model))
            self._counts += [(targets[id(count)], count) for count in counts]

    def others(self, own: torch.nn.Module | None, wrapped: Sequence[torch.Tensor]) -> None:
        """Add the parameters of a model that the optimizer does not have, matched by name."""
        theirs = dict(self._model.named_parameters())
        self._others = namesakes(other_parameters(own, wrapped), self._names, theirs)

    @torch.no_grad()
    def fill(self) -> None:
        """Copy all values into the model."""
        for center, targets in self._filled:
            for (buffer, _), values in zip(center, center.values().values(), strict=True):
                for tensor, source in zip(buffer.tensors, buffer.split(values), strict=True):
                    targets[id(tensor)].copy_(source)
        for target, source in (*self._counts, *self._others):
            target.copy_(source)
