"""The rows of the experiment: a way to run L-BFGS, and a number of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HISTORY: Final = 10
WARM: Final = HISTORY + 1
"""Iterations before the timed ones: then all pairs are there."""


@dataclass(frozen=True)
class Row:
    """One way with one number of parameters.

    Attributes:
        way: key of ``ways.WAYS``.
        size: number of parameters.
    """

    way: str
    size: int

    @property
    def name(self) -> str:
        """For files and command lines."""
        return f"{self.way}-{self.size}"

    @property
    def file_name(self) -> str:
        """Name of the result's file."""
        return f"{self.name}.json"
