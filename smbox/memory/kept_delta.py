"""What the numpy kernel of an exchange has added to a stripe, kept for the worker's half."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class KeptDelta:
    """Room for one stripe's delta: saves the worker two of four passes over memory.

    Compiled kernels keep nothing: to compute it again costs them less.
    """

    __slots__ = ("_kept", "_room")

    def __init__(self) -> None:
        self._room: NDArray[Any] = np.empty(0)
        self._kept: NDArray[Any] | None = None

    def room(self, like: NDArray[Any]) -> NDArray[Any]:
        """Return an array of that size and dtype, and forget what was kept."""
        self._kept = None
        if self._room.size < like.size or self._room.dtype != like.dtype:
            self._room = np.empty(like.size, like.dtype)
        return self._room[: like.size]

    def keep(self, delta: NDArray[Any]) -> None:
        """Keep ``delta``, which lies in the room."""
        self._kept = delta

    def take(self) -> NDArray[Any] | None:
        """Return what was kept, once: whoever takes it may write into it."""
        kept, self._kept = self._kept, None
        return kept
