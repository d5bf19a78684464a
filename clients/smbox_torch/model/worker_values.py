"""A worker's own parameters and buffers, kept aside while its model holds the center's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smbox.errors import ConfigError
from smbox_torch.model.flat import FlatParameters

__all__ = ["WorkerValues"]


class WorkerValues:
    """The values that :meth:`WrappedOptimizer.eval` saves and ``train`` restores.

    Args:
        flats: the worker's parameters, then its buffers if they are exchanged.
    """

    def __init__(self, flats: Sequence[FlatParameters]) -> None:
        self._flats = tuple(flats)
        self._kept: list[dict[str, torch.Tensor]] | None = None

    @property
    def are_saved(self) -> bool:
        """Whether the own values are saved, and the model holds the center's."""
        return self._kept is not None

    def replace(self, take: Callable[[], None]) -> None:
        """Save the own values and call ``take``, which overwrites them; undo if it raises.

        Raises:
            ConfigError: see :meth:`check_places`; nothing was changed.
        """
        if self.are_saved:
            return
        self.check_places()
        self._kept = self.values()
        try:
            take()
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Put the own values back into the model, if they are saved."""
        for flat, values in zip(self._flats, self._kept or (), strict=False):
            flat.set(values)
        self._kept = None  # last: an interrupted call can be repeated

    def values(self) -> list[dict[str, torch.Tensor]]:
        """Return a copy of the own values: dtype -> ``[P]`` on the CPU."""
        if self._kept is None:
            return [flat.values() for flat in self._flats]
        return [{dtype: x.clone() for dtype, x in each.items()} for each in self._kept]

    def check(self) -> None:
        """Raise ConfigError if the model holds the center or was moved; nothing was changed."""
        if self.are_saved:
            raise ConfigError(
                "the model holds the center for an evaluation: call the optimizer's train()"
                " before the next forward pass of training"
            )
        self.check_places()

    def check_places(self) -> None:
        """Raise ConfigError if the model was moved: it would not get values any more."""
        for flat in self._flats:
            flat.check()
