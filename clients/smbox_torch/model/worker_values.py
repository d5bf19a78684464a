"""A worker's own parameters and buffers, kept aside while its model holds the center's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smbox.errors import ConfigError
from smbox_torch.model.flat import FlatParameters

__all__ = ["WorkerValues"]


class WorkerValues:
    """What :meth:`WrappedOptimizer.eval` keeps and :meth:`WrappedOptimizer.train` gives back.

    Args:
        flats: the worker's parameters, then its buffers if they are exchanged.
    """

    def __init__(self, flats: Sequence[FlatParameters]) -> None:
        self._flats = tuple(flats)
        self._kept: list[dict[str, torch.Tensor]] | None = None

    @property
    def are_saved(self) -> bool:
        """Whether the model holds other values now."""
        return self._kept is not None

    def replace(self, take: Callable[[], None]) -> None:
        """Keep the own values and let ``take`` overwrite them; what it raises undoes that."""
        if self.are_saved:
            return
        self._kept = self.values()
        try:
            take()
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Put the own values into the model again, if they are kept."""
        kept, self._kept = self._kept, None
        for flat, values in zip(self._flats, kept or (), strict=False):
            flat.set(values)

    def values(self) -> list[dict[str, torch.Tensor]]:
        """Return a copy of the own values, wherever they are: dtype -> ``[P]`` on the CPU."""
        if self._kept is None:
            return [flat.values() for flat in self._flats]
        return [{dtype: x.clone() for dtype, x in each.items()} for each in self._kept]

    def check(self) -> None:
        """Raise ConfigError while the model holds the center; nothing was changed."""
        if self.are_saved:
            raise ConfigError(
                "the model holds the center, to be evaluated: call the optimizer's train()"
                " before the next forward pass of training"
            )
