"""The picture of the convergence runs: accuracy in the end, and on the way there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ways import WAYS

CURVES = ("one", "sync", "easgd-10", "eamsgd-10", "downpour-1", "downpour-64", "hybrid")


def draw(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Write the picture (PNG, by the path's ending).

    Args:
        runs: results by the name of the way; every way one line of the left panel.
        path: of the picture.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    figure = Figure(figsize=(11, 0.6 + 0.3 * max(len(runs), 10)), layout="constrained")
    ends, curves = figure.subplots(1, 2)
    _ends(ends, runs)
    _curves(curves, runs)
    figure.savefig(path, dpi=110)


def _ends(axes: Any, runs: dict[str, list[dict[str, Any]]]) -> None:
    """One line per way: a point per seed, a bar at the mean."""
    for row, (name, mine) in enumerate(runs.items()):
        figures = [100 * run["accuracy"] for run in mine]
        axes.plot(figures, [row] * len(figures), "o", color="tab:blue", alpha=0.5)
        axes.plot(statistics.fmean(figures), row, "|", color="black", markersize=14)
        if name == "one":
            axes.axvline(statistics.fmean(figures), color="black", linewidth=0.8)
    axes.set_yticks(range(len(runs)), [WAYS[name].title for name in runs])
    axes.invert_yaxis()
    axes.set_xlabel("accuracy of what is shared, %, on the whole test set")
    axes.grid(alpha=0.3)


def _curves(axes: Any, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Rank 0's own model on the way, mean over the seeds."""
    for name in CURVES:
        if name in runs:
            x, y = _mean_curve([run["curve"] for run in runs[name]])
            style = {"color": "black", "linewidth": 2.0} if name == "one" else {}
            axes.plot(x, y, label=WAYS[name].title, **style)
    axes.set_xlabel("share of the run")
    axes.set_ylabel("accuracy of worker 0's own model, %, on 500 test pictures")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[list[float], list[float]]:
    points = list(zip(*curves, strict=False))
    x = [statistics.fmean(point[0] for point in each) for each in points]
    return x, [100 * statistics.fmean(point[1] for point in each) for each in points]
