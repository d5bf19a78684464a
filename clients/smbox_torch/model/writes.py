"""Whether somebody wrote tensors: torch counts the writes of this process to each one."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["Writes"]


class Writes:
    """The writes to some tensors, of which those so far are known.

    Writes by way of ``tensor.data``, of another tensor on the same memory or of another process
    are not counted.

    Args:
        tensors: of a model.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        self.note()

    def note(self) -> None:
        """Know of all writes so far."""
        self._known = self._counted()

    def are_new(self) -> bool:
        """Tell whether there were others since."""
        return self._counted() != self._known

    def _counted(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]  # noqa: SLF001
