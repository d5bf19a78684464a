"""The runs as tables of their page, beside what ShmCaffe published."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from intervals import interval, paired
from pages import NOT_MEASURED, fill, table
from plots import panels
from result_files import Result
from results import Results, accuracy, by_seed
from trainers import moving_rate_of

from shmcaffe.catalog import ASYNC, BASELINE, GROUPS, HYBRID, ROWS, SETS, WORKERS

PAGE: Final = "shmcaffe.md"
PICTURE: Final = "![Accuracy, and bytes between hosts](shmcaffe.png)"
PUBLISHED_TRAFFIC: Final = 4.0
PUBLISHED_BEHIND: Final = 5.7
PUBLISHED_AHEAD: Final = 4.3
MIB: Final = 1 << 20

HEAD: Final = [
    "row",
    "exchange",
    "workers",
    "groups x rate",
    "accuracy, %",
    "to one process, points",
    "between hosts, MiB",
    "exchanges",
    "staleness",
    "runs",
]


def traffic(result: Result) -> float:
    """Return what the run moved between hosts and the memory, both ways, in MiB of payload."""
    return float(result["stats"]["nbytes"]) / MIB


def staleness(results: list[Result]) -> str:
    """Return the mean number of others' exchanges between two of one worker."""
    seen = [(int(k), n) for each in results for k, n in each["staleness"].items()]
    count = sum(n for _, n in seen)
    return f"{sum(k * n for k, n in seen) / count:.1f}" if count else ""


def median_of(figure: Callable[[Result], float], results: list[Result]) -> float:
    """Return the median of a figure over the runs."""
    return statistics.median(figure(each) for each in results)


def row_table(results: Results) -> str:
    """Lay out a line for each row."""
    lines = []
    for name, mine in results.items():
        row = ROWS[name]
        rate, members = moving_rate_of(row), row.nodes
        behind = paired(by_seed(mine), by_seed(results.get(BASELINE, [])))
        is_baseline = name == BASELINE or behind is None
        lines.append(
            [
                row.title,
                row.table,
                f"{row.workers} x {row.batch}",
                "" if rate is None else f"{members * rate:.2g}",
                str(interval([accuracy(each) for each in mine])),
                "" if is_baseline else behind.signed,
                f"{median_of(traffic, mine):.0f}",
                f"{median_of(lambda each: each['stats']['exchanges'], mine):,.0f}",
                staleness(mine),
                str(len(mine)),
            ]
        )
    return table(HEAD, lines, words=2)


def verdict(results: Results) -> str:
    """Say what the runs tell beside what was published."""
    lines = []
    if ASYNC in results and HYBRID in results:
        factor = median_of(traffic, results[ASYNC]) / median_of(traffic, results[HYBRID])
        lines.append(
            f"- Traffic: A16 moved {factor:.2f} times the bytes of H 4 x 4; published: the size"
            f" of a group, {PUBLISHED_TRAFFIC:g}."
        )
        ahead = paired(by_seed(results[HYBRID]), by_seed(results[ASYNC]))
        if ahead is not None:
            lines.append(
                f"- Accuracy of H 4 x 4 minus that of A16: {ahead.signed} points; published:"
                f" {PUBLISHED_AHEAD:+.1f}."
            )
    if ASYNC in results and BASELINE in results:
        behind = paired(by_seed(results[ASYNC]), by_seed(results[BASELINE]))
        if behind is not None:
            lines.append(
                f"- Accuracy of A16 minus that of one process: {behind.signed} points;"
                f" published: {-PUBLISHED_BEHIND:+.1f}."
            )
    return "\n".join(lines)


def text(found: Mapping[str, Results]) -> str:
    """Return the part of the page that is written here.

    Args:
        found: results by the name of the set; of each that was run.
    """
    parts = [PICTURE] if found else []
    for name, results in found.items():
        first = next(iter(results.values()))[0]
        machine = f"{first['cores']} cores of {first['cpu']}, torch {first['torch']}"
        epochs = f"{first['settings']['epochs']:g} epochs"
        parts += [
            f"### {SETS[name].title[0].upper()}{SETS[name].title[1:]}",
            f"{epochs}; {machine}.",
        ]
        parts += [verdict(results)] if verdict(results) else []
        parts.append(row_table(results))
    return "\n\n".join(parts)


def write(found: Mapping[str, Results], docs: Path) -> None:
    """Write the page's results and its plot."""
    ordered = {
        name: {row: results[row] for row in ROWS if row in results}
        for name, results in found.items()
    }
    fill(docs / PAGE, {"results": text(ordered) or NOT_MEASURED})
    if ordered:
        draw(ordered, docs / "shmcaffe.png")


def draw(found: Mapping[str, Results], path: Path) -> None:
    """Write the plot (PNG, by the path's ending): a line of two panels for each set."""
    with panels(path, (len(found), 2), (11, 2.6 * len(found))) as lines:
        for (left, right), (name, results) in zip(lines, found.items(), strict=True):
            _accuracies(left, results)
            left.set_title(SETS[name].title)
            _traffic(right, results)


def _labels(results: Results) -> list[str]:
    return [", ".join(filter(None, (ROWS[n].title, ROWS[n].table))) for n in results]


def _accuracies(axes: Any, results: Results) -> None:
    for line, mine in enumerate(results.values()):
        figures = [accuracy(each) for each in mine]
        axes.plot(figures, [line] * len(figures), "o", color="tab:blue", alpha=0.5)
        axes.plot(statistics.fmean(figures), line, "|", color="black", markersize=14)
    axes.set_yticks(range(len(results)), _labels(results))
    axes.invert_yaxis()
    axes.set_xlabel("accuracy of the center, %: a point for each seed, and the mean")


def _traffic(axes: Any, results: Results) -> None:
    axes.barh(range(len(results)), [median_of(traffic, mine) for mine in results.values()])
    axes.set_yticks(range(len(results)), [""] * len(results))
    axes.invert_yaxis()
    axes.set_xlabel(f"MiB between hosts: {WORKERS} workers, or the roots of {GROUPS} groups")
