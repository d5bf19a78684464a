"""The pictures: speed-up, bytes and packets over time, and the planner's rates beyond."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plots import panels
from result_files import Result

from server_or_ring.rows import Row, parameters_of, predicted
from server_or_ring.tables import TITLES, Results
from smbox_torch.planning.methods import METHODS

DPI, BEYOND_DPI = 100, 90
BEYOND = (2, 4, 6, 10, 20, 50, 100, 200, 500, 1000)
COLORS = dict(zip(METHODS, (f"C{number}" for number in range(len(METHODS))), strict=True))
DASHES = {"hybrid": "--", "easgd-striped": ":"}
"""Lines that may lie on each other."""

MBIT = 8e-6
SPAN_MIN_S = 0.1
"""The last sample of a run may follow the one before it at once, and tells no rate."""

CURVES = (("in", 1, 0, MBIT), ("out", 3, 0, MBIT), ("in", 2, 1, 1.0), ("out", 4, 1, 1.0))
"""Of a host: direction, column of a sample, panel, and factor to the panel's unit."""


def draw_speed_ups(results: Results, path: Path) -> None:
    """One panel a model: points measured, lines of the planner."""
    models = list(dict.fromkeys(row.model for row in results))
    size = max(4.2 * len(models), 9), 4.6
    with panels(path, (1, len(models)), size, dpi=DPI) as (line,):
        for axes, model in zip(line, models, strict=True):
            for way in METHODS:
                mine = {r: x for r, x in results.items() if (r.model, r.way) == (model, way)}
                _speed_up(axes, way, mine)
            counts = sorted({row.workers for row in results})
            axes.plot(counts, counts, ":", color="black", label="ideal")
            axes.set_title(model)
            axes.set_xlabel("workers")
            axes.set_xticks(counts)
        line[0].set_ylabel("speed-up; points measured, lines planned")
        _legend(line[0])


def _legend(axes: Any) -> None:
    """Set the legend of one panel below all of them."""
    told = axes.get_legend_handles_labels()
    axes.figure.legend(*told, loc="outside lower center", ncols=4)


def _speed_up(axes: Any, way: str, mine: Results) -> None:
    if not mine:
        return
    rows = sorted(mine, key=lambda row: row.workers)
    x = [row.workers for row in rows]
    planned = [predicted(row, parameters_of(row.model)).speed_up for row in rows]
    axes.plot(x, planned, DASHES.get(way, "-"), color=COLORS[way], linewidth=0.8)
    found = [mine[row]["speed_up"] for row in rows]
    axes.plot(x, found, "o", color=COLORS[way], label=TITLES[way])


def draw_over_time(results: Results, path: Path) -> None:
    """One line of panels a way, of the last model with the most workers: bytes, packets."""
    model = list(results)[-1].model
    most = max(row.workers for row in results if row.model == model)
    chosen = {
        row.way: result
        for row, result in results.items()
        if (row.model, row.workers) == (model, most)
    }
    with panels(path, (len(chosen), 2), (11, 1.7 * len(chosen)), dpi=DPI) as lines:
        for line, way in zip(lines, (way for way in METHODS if way in chosen), strict=True):
            _over_time(line, chosen[way])
            title = f"{TITLES[way]}, {model}, {most} workers: Mbit/s"
            line[0].set_title(title, fontsize="small")
            line[1].set_title("packets/s", fontsize="small")
        for axes in lines[-1]:
            axes.set_xlabel("seconds in the laboratory")
        lines[0][0].legend(fontsize="x-small")


def _over_time(line: Sequence[Any], result: Result) -> None:
    hosts = result["over_time"]
    nodes = [name for name in hosts if name.startswith("node")]
    workers = [name for name in hosts if name not in nodes]
    for host in (nodes[0], workers[0]):
        pairs = [
            (before[0], after)
            for before, after in itertools.pairwise(hosts[host])
            if after[0] - before[0] >= SPAN_MIN_S
        ]
        seconds = [after[0] for _, after in pairs]
        for name, column, panel, factor in CURVES:
            rates = [factor * after[column] / (after[0] - begin) for begin, after in pairs]
            line[panel].step(seconds, rates, where="pre", label=f"{host}, {name}")


def draw_beyond(rows: Sequence[Row], path: Path) -> None:
    """One panel a model: the planner's images/s up to 1,000 workers.

    Args:
        rows: one of each model, whose way and number of workers do not matter.
        path: of the picture.
    """
    size = 3.6 * len(rows), 4.6
    with panels(path, (1, len(rows)), size, dpi=BEYOND_DPI, which="both") as (line,):
        for axes, row in zip(line, rows, strict=True):
            for way in METHODS:
                _planned(axes, replace(row, way=way))
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(row.model)
            axes.set_xlabel("workers")
        line[0].set_ylabel("images/s, predicted")
        _legend(line[0])


def _planned(axes: Any, row: Row) -> None:
    counts = [replace(row, workers=count) for count in BEYOND]
    rates = [predicted(each, parameters_of(row.model)).images_per_s for each in counts]
    style = {"color": COLORS[row.way], "label": TITLES[row.way]}
    axes.plot(BEYOND, rates, DASHES.get(row.way, "-"), **style)
