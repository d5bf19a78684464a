"""The pictures: speed-up, bytes and packets over time, and the planner's rates beyond."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from server_or_ring.results import Result
from server_or_ring.rows import Row, parameters_of, predicted
from server_or_ring.tables import TITLES, Results
from smbox_torch.plan_ways import WAYS

BEYOND = (2, 4, 6, 10, 20, 50, 100, 200, 500, 1000)
COLORS = dict(zip(WAYS, (f"C{number}" for number in range(len(WAYS))), strict=True))
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
    figure = Figure(figsize=(max(4.2 * len(models), 9), 4.6), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        for way in WAYS:
            mine = {r: each for r, each in results.items() if (r.model, r.way) == (model, way)}
            _speed_up(axes, way, mine)
        counts = sorted({row.workers for row in results})
        axes.plot(counts, counts, ":", color="black", label="ideal")
        axes.set_title(model)
        axes.set_xlabel("workers")
        axes.set_xticks(counts)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("speed-up; points measured, lines planned")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=100)


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
    figure = Figure(figsize=(11, 1.7 * max(1, len(chosen))), layout="constrained")
    panels = figure.subplots(max(1, len(chosen)), 2, squeeze=False)
    for line, way in zip(panels, (way for way in WAYS if way in chosen), strict=True):
        _over_time(line, chosen[way])
        line[0].set_title(f"{TITLES[way]}, {model}, {most} workers: Mbit/s", fontsize="small")
        line[1].set_title("packets/s", fontsize="small")
    for axes in panels[-1]:
        axes.set_xlabel("seconds in the laboratory")
    panels[0][0].legend(fontsize="x-small")
    figure.savefig(path, dpi=100)


def _over_time(panels: Sequence[Any], result: Result) -> None:
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
            panels[panel].step(seconds, rates, where="pre", label=f"{host}, {name}")
            panels[panel].grid(alpha=0.3)


def draw_beyond(rows: Sequence[Row], path: Path) -> None:
    """One panel a model: the planner's images/s up to 1,000 workers.

    Args:
        rows: one of each model, whose way and number of workers do not matter.
        path: of the picture.
    """
    figure = Figure(figsize=(3.6 * len(rows), 4.6), layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    for axes, row in zip(panels, rows, strict=True):
        for way in WAYS:
            planned = [
                predicted(replace(row, way=way, workers=count), parameters_of(row.model))
                for count in BEYOND
            ]
            rates = [each.images_per_s for each in planned]
            axes.plot(BEYOND, rates, DASHES.get(way, "-"), color=COLORS[way], label=TITLES[way])
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(row.model)
        axes.set_xlabel("workers")
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("images/s, predicted")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=90)
