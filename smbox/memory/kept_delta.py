"""What the numpy kernel of an exchange has added to a stripe, kept for the worker's half."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


class KeptDelta:
    """One stripe's delta: saves the worker two of three passes over memory.

    Compiled kernels keep nothing: to compute it again costs them less.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: NDArray[Any] | None = None

    def keep(self, delta: NDArray[Any] | None) -> None:
        """Keep a delta that nobody else uses; None: forget the last one."""
        self._kept = delta

    def take(self) -> NDArray[Any] | None:
        """Return what was kept, once: from then on it is the taker's own."""
        kept, self._kept = self._kept, None
        return kept
