"""The tables of docs/convergence.md, as Markdown.

A run is a result as ``sweep.py`` leaves it; runs are those of one setting, by way.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ways import WAYS

STALE = ((0, 0), (1, 2), (3, 5), (6, 11), (12, None))
"""Ranges of the histogram, both ends included."""

MIB = 1 << 20

Runs = dict[str, list[dict[str, Any]]]


def mean(runs: Iterable[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> float:
    """Return the mean of a figure over runs."""
    return statistics.fmean(figure(run) for run in runs)


def accuracy(run: dict[str, Any]) -> float:
    """Return the accuracy of a run in percent."""
    return 100.0 * float(run["accuracy"])


def accuracy_table(runs: Runs) -> str:
    """Lay out accuracy and work."""
    best = mean(runs["one"], accuracy)
    columns = (
        "way",
        "accuracy",
        "worst to best",
        "to one process",
        "lr",
        "wall s",
        "CPU s/core",
    )
    lines = [_line(columns), _line(["---", *["--:"] * (len(columns) - 1)])]
    for name, mine in runs.items():
        figures = [accuracy(run) for run in mine]
        lines.append(
            _line(
                (
                    WAYS[name].title + (" ¹" if WAYS[name].part < 1 else ""),
                    f"{statistics.fmean(figures):.1f} %",
                    f"{min(figures):.1f} to {max(figures):.1f}",
                    "" if name == "one" else f"{statistics.fmean(figures) - best:+.1f}",
                    f"{mine[0]['way']['lr']:g}",
                    f"{mean(mine, lambda run: run['wall_s']):.0f}",
                    f"{mean(mine, _cpu_s_per_core):.0f}",
                )
            )
        )
    return "\n".join([*lines, "", "¹ on a quarter of the pictures"])


def exchange_table(runs: Runs) -> str:
    """Lay out what was moved: per run, and per picture."""
    columns = ("way", "exchanges", "MiB", "bytes per picture", "staleness", "hidden")
    lines = [_line(columns), _line(["---", *["--:"] * (len(columns) - 1)])]
    for name, mine in runs.items():
        stats = [run["stats"] for run in mine]
        if not any(each["exchanges"] for each in stats):
            continue
        nbytes = mean(stats, lambda each: each["nbytes"])
        lines.append(
            _line(
                (
                    WAYS[name].title,
                    f"{mean(stats, lambda each: each['exchanges']):,.0f}",
                    f"{nbytes / MIB:,.0f}",
                    f"{nbytes / mine[0]['samples']:,.0f}",
                    _staleness_mean(mine),
                    _hidden(stats),
                )
            )
        )
        if mine[0]["group"]["exchanges"]:
            lines.append(_inside(name, [run["group"] for run in mine], mine[0]["samples"]))
    return "\n".join(lines)


def _inside(name: str, group: Sequence[dict[str, Any]], samples: int) -> str:
    nbytes = mean(group, lambda each: each["nbytes"])
    return _line(
        (
            f"{WAYS[name].title}: inside the nodes",
            f"{mean(group, lambda each: each['exchanges']):,.0f}",
            f"{nbytes / MIB:,.0f}",
            f"{nbytes / samples:,.0f}",
            "",
            _hidden(group),
        )
    )


def staleness_table(runs: Runs) -> str:
    """Lay out the histograms: how many of the exchanges were how stale."""
    heads = [f"{first}" if first == last else f"{first}-{last}" for first, last in STALE[:-1]]
    columns = ("way", *heads, f"{STALE[-1][0]} and more", "most")
    lines = [_line(columns), _line(["---", *["--:"] * (len(columns) - 1)])]
    for name, mine in runs.items():
        seen = _staleness(mine)
        total = seen.total()
        if not total:
            continue
        shares = [
            sum(n for k, n in seen.items() if first <= k <= (k if last is None else last))
            / total
            for first, last in STALE
        ]
        lines.append(
            _line((WAYS[name].title, *(f"{share:.0%}" for share in shares), str(max(seen))))
        )
    return "\n".join(lines)


def _cpu_s_per_core(run: dict[str, Any]) -> float:
    return float((run["cpu_s"] + run["node_cpu_s"]) / run["cores"])


def _staleness(runs: Sequence[dict[str, Any]]) -> Counter[int]:
    seen: Counter[int] = Counter()
    for run in runs:
        seen.update({int(k): n for k, n in run["staleness"].items()})
    return seen


def _staleness_mean(runs: Sequence[dict[str, Any]]) -> str:
    seen = _staleness(runs)
    return f"{sum(k * n for k, n in seen.items()) / seen.total():.2f}" if seen else ""


def _hidden(counts: Sequence[dict[str, Any]]) -> str:
    took = sum(each["exchange_ms"] for each in counts)
    return f"{sum(each['hidden_ms'] for each in counts) / took:.0%}" if took else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
