"""``smbox plan``: predicts images per second of each training method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from smbox import toml
from smbox.cli.output import print_json, print_table
from smbox_torch.planning import models
from smbox_torch.planning.drawing import draw
from smbox_torch.planning.file import FLOAT32, File, read
from smbox_torch.planning.rates import Prediction, predict
from smbox_torch.plotting import check_plot

__all__ = ["command"]

COLUMNS = (
    "method",
    "workers",
    "images/s",
    "speed-up",
    "utilisation",
    "s/iteration",
    "saturates",
)


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="MODEL.toml", help="Settings of the plan: docs/planner.md."),
    ],
    *,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the computation on this processor.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="File for a plot of the rates; the extension selects the format."),
    ] = None,
) -> None:
    """Predict images per second of each training method, and the resource that limits it."""
    if plot is not None:
        check_plot(plot)
    request, parameters = toml.read(file, partial(_settings, is_measured=measure))
    model = request.model
    compute_s = (
        models.measure_compute_s(str(model.name), model.batch)
        if measure
        else float(model.compute_s or 0.0)
    )
    rates = request.rates()
    setups = request.setups(parameters, compute_s)
    found = [
        predict(method, setup, rates, batch=model.batch)
        for method in request.plan.methods
        for setup in setups
    ]
    name = model.name or f"{parameters} parameters"
    title = (
        f"{name}: {FLOAT32 * parameters / 2**20:.1f} MiB, batch {model.batch} in"
        f" {compute_s:.3f} s ({'measured' if measure else 'given'}), links of"
        f" {rates.link_mbit:g} Mbit/s"
    )
    if plot is not None:
        draw(found, title, plot)
    if json:
        facts = {"model": name, "parameters": parameters, "compute_s": compute_s}
        print_json({**facts, "predictions": [asdict(each) for each in found]})
        return
    print(title)
    print_table(COLUMNS, [_cells(each) for each in found])


def _settings(text: bytes, *, is_measured: bool) -> tuple[File, int]:
    """Return the settings, and the number of the model's parameters."""
    request = read(text, is_measured=is_measured)
    model = request.model
    if model.name is not None:
        return request, models.count_parameters(model.name)
    return request, int(model.parameters or 0)


def _cells(each: Prediction) -> Sequence[object]:
    return (
        each.method,
        each.workers,
        f"{each.images_per_s:.1f}",
        f"{each.speed_up:.2f}",
        f"{each.utilisation:.0%}",
        f"{each.iteration_s:.3f}",
        str(each.saturates),
    )
