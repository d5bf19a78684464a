"""The tables of docs/convergence.md, as Markdown.

Figures with ± are means with 95 % confidence intervals (``intervals``), over the seeds of the
row.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from catalog import ROWS, baseline_of
from intervals import interval, paired
from pages import table
from result_files import Result
from results import Results, accuracy, by_seed
from rows import Row
from trainers import moving_rate_of, own_momentum_of, period_of

MARK = 0.6
"""Accuracy whose time is told."""

STALE = ((0, 0), (1, 2), (3, 5), (6, 11), (12, None))
"""Ranges of the histogram, both ends included."""

MIB = 1 << 20
MISSING = "not run"


def mean(results: Iterable[Result], figure: Callable[[Result], float]) -> float:
    """Return the mean of a figure over runs."""
    return statistics.fmean(figure(each) for each in results)


def accuracy_table(results: Results, rows: Sequence[Row]) -> str:
    """Lay out settings, accuracy and work; rows without results say so."""
    head = (
        "row",
        "workers x batch",
        "period",
        "momentum",
        "lr",
        "moving rate",
        "accuracy, %",
        "to its baseline, points",
        "runs",
        "wall s",
        "CPU s/core",
    )
    return table(head, [_accuracy_cells(results, row) for row in rows])


def _accuracy_cells(results: Results, row: Row) -> list[str]:
    mine = results.get(row.name, [])
    settings = [row.title, f"{row.workers} x {row.batch}", *_settings(row)]
    if not mine:
        return [*settings, MISSING, "", "0", "", ""]
    baseline = results.get(baseline_of(row), [])
    difference = paired(by_seed(mine), by_seed(baseline))
    is_own = row.name == baseline_of(row)
    return [
        *settings,
        str(interval([accuracy(each) for each in mine])),
        "" if difference is None or is_own else difference.signed,
        _count(mine),
        f"{mean(mine, lambda each: each['wall_s']):.0f}",
        f"{mean(mine, _cpu_s_per_core):.0f}",
    ]


def _count(results: Sequence[Result]) -> str:
    """Word how many runs there are, and in how many the loss became no number."""
    diverged = sum(each["loss"] is None for each in results)
    return f"{len(results)}, {diverged} diverged" if diverged else str(len(results))


def _settings(row: Row) -> list[str]:
    """Word period, momentum, learning rate and moving rate, and which of them are defaults."""
    period, rate, own = period_of(row), moving_rate_of(row), own_momentum_of(row)
    is_default_rate = row.options.get("moving_rate") is None
    momentum = f"{row.momentum:g}" if own is None else f"own {own:g}"
    return [
        "" if period is None else str(period),
        momentum,
        f"{row.lr:g}",
        "" if rate is None else f"{rate:.3g}{' (default)' if is_default_rate else ''}",
    ]


def time_table(results: Results, rows: Sequence[Row]) -> str:
    """Lay out when the curve first reached MARK, over the runs in which it did."""
    head = ("row", f"reached {MARK:.0%}", "seconds", "samples")
    lines = []
    for row in rows:
        mine = results.get(row.name, [])
        reached = [found for each in mine if (found := reached_at(each)) is not None]
        if not reached:
            lines.append([row.title, f"0 of {len(mine)}" if mine else MISSING, "", ""])
            continue
        seconds = interval([each[0] for each in reached])
        samples = interval([each[1] / 1000.0 for each in reached])
        told = f"{len(reached)} of {len(mine)}"
        lines.append([row.title, told, str(seconds), f"{samples} thousand"])
    return table(head, lines)


def reached_at(result: Result) -> tuple[float, float] | None:
    """Return seconds and samples until a look first showed MARK; None: none did."""
    for done, seconds, seen in result["curve"]:
        if seen >= MARK:
            return seconds, done * result["samples"]
    return None


def scenario_table(results: Results, rows: Sequence[Row]) -> str:
    """Lay out how algorithms bear a slow, a killed and a joining worker."""
    head = ("row", "accuracy, %", "to undisturbed, points", "wall s", "samples", "in the end")
    lines = []
    for row in rows:
        mine = results.get(row.name, [])
        if not mine:
            lines.append([row.title, MISSING, "", "", "", ""])
            continue
        calm = results.get(f"{row.kind}-undisturbed", [])
        difference = paired(by_seed(mine), by_seed(calm))
        lines.append(
            [
                row.title,
                str(interval([accuracy(each) for each in mine])),
                "" if difference is None or row.scenario == "none" else difference.signed,
                f"{mean(mine, lambda each: each['wall_s']):.0f}",
                f"{mean(mine, lambda each: each['samples']):,.0f}",
                _endings(row, mine),
            ]
        )
    return table(head, lines)


def _endings(row: Row, results: Sequence[Result]) -> str:
    """Word how many workers did all their steps, and what stopped the others."""
    ended = sorted({each["ended"] for each in results})
    told = [f"{' or '.join(map(str, ended))} of {row.workers} finished"]
    told += sorted({each["error"].partition(":")[0] for each in results if each["error"]})
    return ", ".join(told)


def exchange_table(results: Results) -> str:
    """Lay out what was moved: per run, and per picture."""
    head = ("row", "exchanges", "MiB", "bytes per picture", "staleness", "hidden")
    lines = []
    for name, mine in results.items():
        for part, title in (("stats", ROWS[name].title), ("group", "  inside the nodes")):
            counts = [each[part] for each in mine]
            if any(each["exchanges"] for each in counts):
                nbytes = mean(counts, lambda each: each["nbytes"])
                lines.append(
                    [
                        title,
                        f"{mean(counts, lambda each: each['exchanges']):,.0f}",
                        f"{nbytes / MIB:,.0f}",
                        f"{nbytes / mine[0]['samples']:,.0f}",
                        _staleness_mean(mine) if part == "stats" else "",
                        _hidden(counts),
                    ]
                )
    return table(head, lines)


def staleness_table(results: Results) -> str:
    """Lay out the histograms: how many of the exchanges were how stale."""
    ranges = [f"{first}" if first == last else f"{first}-{last}" for first, last in STALE[:-1]]
    head = ("row", *ranges, f"{STALE[-1][0]} and more", "most")
    lines = []
    for name, mine in results.items():
        seen = _staleness(mine)
        if seen:
            shares = [
                sum(n for k, n in seen.items() if first <= k <= (k if last is None else last))
                / seen.total()
                for first, last in STALE
            ]
            told = [f"{share:.0%}" for share in shares]
            lines.append([ROWS[name].title, *told, str(max(seen))])
    return table(head, lines)


def _cpu_s_per_core(result: Result) -> float:
    return float((result["cpu_s"] + result["node_cpu_s"]) / result["cores"])


def _staleness(results: Sequence[Result]) -> Counter[int]:
    seen: Counter[int] = Counter()
    for each in results:
        seen.update({int(k): n for k, n in each["staleness"].items()})
    return seen


def _staleness_mean(results: Sequence[Result]) -> str:
    seen = _staleness(results)
    return f"{sum(k * n for k, n in seen.items()) / seen.total():.2f}" if seen else ""


def _hidden(counts: Sequence[dict[str, float]]) -> str:
    took = sum(each["exchange_ms"] for each in counts)
    return f"{sum(each['hidden_ms'] for each in counts) / took:.0%}" if took else ""
