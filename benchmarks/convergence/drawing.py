"""The picture of the convergence runs: accuracy in the end, and on the way there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from catalog import CLASSES, ROWS
from intervals import interval
from plots import panels
from result_files import Result
from results import Results, accuracy

CURVES = ("one", "sync", "easgd", "easgd-64", "eamsgd-64", "downpour", "downpour-64", "hybrid")


def draw(results: Results, path: Path) -> None:
    """Write the picture (PNG, by the path's ending).

    Args:
        results: by row; every row of the table of classes is one line of the left panel.
        path: of the picture.
    """
    shown = {name: each for name, each in results.items() if ROWS[name].table == CLASSES}
    with panels(path, (1, 2), (11, 0.6 + 0.3 * max(len(shown), 10))) as ((ends, curves),):
        _ends(ends, shown)
        _curves(curves, results)


def _ends(axes: Any, results: Results) -> None:
    """One line per row: a point per seed, and the mean with its interval."""
    for line, (name, mine) in enumerate(results.items()):
        figures = [accuracy(each) for each in mine]
        told = interval(figures)
        axes.plot(figures, [line] * len(figures), "o", color="tab:blue", alpha=0.5)
        axes.errorbar(told.mean, line, xerr=told.half or 0.0, color="black", capsize=4)
        if name == "one":
            axes.axvline(told.mean, color="black", linewidth=0.8)
    axes.set_yticks(range(len(results)), [ROWS[name].title for name in results])
    axes.invert_yaxis()
    axes.set_xlabel("accuracy, %, on the test set; mean with 95 % confidence interval")


def _curves(axes: Any, results: Results) -> None:
    """What the row is judged by, on the way; mean over the seeds."""
    for name in CURVES:
        if name in results:
            x, y = mean_curve(results[name])
            style = {"color": "black", "linewidth": 2.0} if name == "one" else {}
            axes.plot(x, y, label=ROWS[name].title, **style)
    axes.set_xlabel("share of the run")
    axes.set_ylabel("accuracy, %, on 1000 validation pictures")
    if any(name in results for name in CURVES):
        axes.legend(fontsize="small")


def mean_curve(results: Sequence[Result]) -> tuple[list[float], list[float]]:
    """Return share of the run and mean accuracy in percent, look by look."""
    looks = list(zip(*(each["curve"] for each in results), strict=False))
    x = [statistics.fmean(point[0] for point in each) for each in looks]
    return x, [100 * statistics.fmean(point[2] for point in each) for each in looks]
