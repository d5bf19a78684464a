"""CenterCopy: copies parameters, statistics and counts of a center into a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from smbox_torch.model.buffers import named_counts, named_floats
from smbox_torch.model.matching import Names, counterparts, namesakes
from smbox_torch.model.others import other_parameters

__all__ = ["CenterCopy"]

Tensors = Sequence[torch.Tensor]


class CenterCopy:
    """A copy in preparation: matches tensors first, and changes the model only in ``fill``.

    Args:
        model: the target; it may be the worker's own model.
        names: names of the optimizer's parameters and of its own model's buffers.
    """

    def __init__(self, model: torch.nn.Module, names: Names) -> None:
        self._model = model
        self._names = names
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def parameters(self, own: Tensors, values: Tensors, *, groups: int) -> None:
        """Add the optimizer's parameters to the copy.

        Args:
            own: the parameters, each once, in the order of the optimizer.
            values: what to copy, one for each.
            groups: number of groups of the optimizer.

        Raises:
            ConfigError: the model has other parameters; see :func:`counterparts`.
        """
        self._add(own, values, dict(self._model.named_parameters()), groups)

    def statistics(self, own: Tensors, values: Tensors) -> None:
        """Add floating-point buffers; raise ConfigError if the model has others."""
        self._add(own, values, named_floats(self._model))

    def counts(self, own: Tensors, values: Tensors | None = None) -> None:
        """Add integer buffers, by default with their own values; raises as ``statistics``."""
        self._add(own, own if values is None else values, named_counts(self._model))

    def buffers(self, own: Tensors) -> None:
        """Add buffers of any dtype with their own values; raises as ``statistics``."""
        self._add(own, own, dict(self._model.named_buffers()))

    def _add(
        self,
        own: Tensors,
        values: Tensors,
        theirs: Mapping[str, torch.Tensor],
        groups: int = 1,
    ) -> None:
        targets = counterparts(own, self._names, theirs, groups=groups)
        self._pairs += [
            (targets[id(tensor)], each) for tensor, each in zip(own, values, strict=True)
        ]

    def others(self, own: torch.nn.Module | None, wrapped: Tensors) -> None:
        """Add the parameters of a model that the optimizer does not have, matched by name."""
        theirs = dict(self._model.named_parameters())
        self._pairs += namesakes(other_parameters(own, wrapped), self._names, theirs)

    @torch.no_grad()
    def fill(self) -> None:
        """Copy all values into the model."""
        for target, source in self._pairs:
            target.copy_(source)
