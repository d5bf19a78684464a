"""The plot: times of other ways as multiples of smbox's, and shares of the raw transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from plots import panels

from memory_or_messages.rows import VERBS, PathName

Points = Sequence[tuple[float, float]]
Lines = Mapping[tuple[str, str], Points]
"""By ratio and verb."""

STYLES: Final = {"gRPC unary": "-", "best gRPC": "--", "MPI": ":", "MPI RMA": "-."}
PUBLISHED: Final = 25.0
PUBLISHED_SHARE: Final = 0.96
TITLES: Final[dict[PathName, str]] = {"memory": "mapped memory", "tcp": "loopback tcp"}


def draw(
    ratios: Mapping[PathName, Lines], shares: Mapping[PathName, Points], path: Path
) -> None:
    """Write the plot (PNG, by the path's ending)."""
    with panels(path, (1, 3), (13, 4.2)) as ((*both, last),):
        for axes, (name, lines) in zip(both, ratios.items(), strict=True):
            _ratios(axes, lines)
            axes.set_title(TITLES[name])
        _shares(last, shares)


def _ratios(axes: Any, lines: Lines) -> None:
    for (name, verb), points in lines.items():
        if points:
            color = f"C{VERBS.index(verb)}"
            axes.plot(*zip(*points, strict=True), STYLES[name], color=color, marker=".")
    for index, verb in enumerate(VERBS):
        axes.plot([], [], color=f"C{index}", label=verb)
    for name, style in STYLES.items():
        axes.plot([], [], style, color="black", label=name)
    axes.axhline(PUBLISHED, color="gray", linewidth=0.8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes of a call")
    axes.set_ylabel("time of a call, smbox = 1; gray: the published 25")
    axes.legend(fontsize="small")


def _shares(axes: Any, shares: Mapping[PathName, Points]) -> None:
    for name, points in shares.items():
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=TITLES[name])
    axes.axhline(PUBLISHED_SHARE, color="gray", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0.0)
    axes.set_title("half writes, half reads")
    axes.set_xlabel("processes")
    axes.set_ylabel("share of the raw transport; gray: SMB's 96 %")
    if any(shares.values()):
        axes.legend(fontsize="small")
