"""Detect writes to tensors by the version that torch keeps for each tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["TensorVersions"]


class TensorVersions:
    """Recorded versions of some tensors.

    Writes through ``tensor.data``, through another tensor on the same memory, or by another
    process do not change a version.

    Args:
        tensors: parameters of a model.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        self.record()

    def record(self) -> None:
        """Record the current versions."""
        self._recorded = self._current()

    def have_changed(self) -> bool:
        """Return True if a tensor was written since the last :meth:`record`."""
        return self._current() != self._recorded

    def _current(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]  # noqa: SLF001
