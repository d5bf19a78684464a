"""A row of the benchmark: a figure, its limit and its goal. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

GIGABYTE: Final = 1e9
MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure is held to.

    Attributes:
        of: ``"ratio"`` (of figure to limit) or ``"figure"`` (in the figure's own unit).
        least: the lowest value allowed, or None.
        most: the highest value allowed, or None.
    """

    of: str
    least: float | None = None
    most: float | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the goal that ``text`` says; see ``text``."""
        of, sign, bound = text.split()
        least, most = (float(bound), None) if sign == ">=" else (None, float(bound))
        return cls(of, least, most)

    @property
    def text(self) -> str:
        """What it is about, and how much: ``ratio >= 0.9``."""
        return f"{self.of} {self}"

    def is_met(self, value: float) -> bool:
        """Return whether ``value`` is within the goal."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def __str__(self) -> str:
        """Return it as people write it: ``>= 0.9``."""
        return f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """One measured figure.

    Attributes:
        row: which row of the benchmark; ``--only`` chooses by it.
        case: size or variant within the row.
        figure: what smbox did, a median.
        unit: of figure and limit: ``"GB/s"``, ``"us"``, ``"MiB"``, ``"op/s"``.
        goal: what it is held to.
        limit: what the machine did beside it in the same unit, or None.
        limit_name: what that limit is.
        cpu_s_per_gb: CPU seconds of client and node per 10^9 bytes moved, or None.
    """

    row: str
    case: str
    figure: float
    unit: str
    goal: Goal
    limit: float | None = None
    limit_name: str = ""
    cpu_s_per_gb: float | None = None

    @property
    def ratio(self) -> float | None:
        """Figure over limit."""
        return None if not self.limit else self.figure / self.limit

    @property
    def is_met(self) -> bool:
        """Return whether the goal is met; one about a ratio needs a limit."""
        value = self.figure if self.goal.of == "figure" else self.ratio
        return value is not None and self.goal.is_met(value)

    def as_dict(self, *, is_judged: bool = True) -> dict[str, Any]:
        """Return what `smbox bench --json` prints; ``met`` is None without ``is_judged``."""
        return {
            "row": self.row,
            "case": self.case,
            "figure": self.figure,
            "unit": self.unit,
            "limit": self.limit,
            "limit_name": self.limit_name,
            "ratio": self.ratio,
            "goal": self.goal.text,
            "met": self.is_met if is_judged else None,
            "cpu_s_per_gb": self.cpu_s_per_gb,
        }


def at_least(value: float) -> Goal:
    """Hold the ratio to at least ``value``."""
    return Goal("ratio", least=value)


def at_most(value: float) -> Goal:
    """Hold the ratio to at most ``value``."""
    return Goal("ratio", most=value)


def figure_at_most(value: float) -> Goal:
    """Hold the figure itself to at most ``value`` of its unit."""
    return Goal("figure", most=value)


def size_name(nbytes: int) -> str:
    """Name a size: ``"4 KiB"``, ``"528 MiB"``."""
    return f"{nbytes // MEBIBYTE} MiB" if nbytes >= MEBIBYTE else f"{nbytes // 1024} KiB"
