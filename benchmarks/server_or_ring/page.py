"""Writes tables and pictures into docs/experiments/server_or_ring.md and docs/planner.md.

Each table stands between two comments, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; the
words around them are written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pages import NOT_MEASURED, fill

from server_or_ring import tables
from server_or_ring.compute import PREDICTED
from server_or_ring.findings import findings
from server_or_ring.rows import Row
from server_or_ring.tables import Results

PAGE = "experiments/server_or_ring.md"
PLANNER = "planner.md"


def write(
    docs: Path, results: Results, rows: Sequence[Row], measured: Mapping[str, Any]
) -> None:
    """Write all that the results tell.

    Args:
        docs: folder of the pages.
        results: of the rows that have run, in the order of the rows.
        rows: all that are asked for.
        measured: as ``compute.times`` returns it.
    """
    seconds = measured["seconds"]
    beyond = [
        replace(row, model=model, compute_s=seconds[model])
        for model in PREDICTED
        for row in rows
        if row.model == rows[0].model
    ]
    page = {
        "conditions": conditions(results, rows, measured),
        "findings": findings(results) or NOT_MEASURED,
        "measured": _with_picture(results, tables.measured, "server_or_ring.png"),
        "moved": _with_picture(results, tables.moved, "server_or_ring_time.png"),
        "predicted": tables.foreseen(tables.sorted_rows(beyond)),
    }
    fill(docs / PAGE, page)
    planner = {
        "errors": tables.errors(results) if results else NOT_MEASURED,
        "beyond": "![images/s that the planner predicts up to 1,000 workers](planner.png)",
    }
    fill(docs / PLANNER, planner)
    _draw(docs, results, [replace(rows[0], model=m, compute_s=seconds[m]) for m in seconds])


def _with_picture(results: Results, table: Any, picture: str) -> str:
    if not results:
        return NOT_MEASURED
    return f"{table(results)}\n\n![the same as a picture]({picture})"


def _draw(docs: Path, results: Results, models: Sequence[Row]) -> None:
    from server_or_ring import drawing  # noqa: PLC0415 - matplotlib is slow to import

    folder = (docs / PAGE).parent
    if results:
        drawing.draw_speed_ups(results, folder / "server_or_ring.png")
        drawing.draw_over_time(results, folder / "server_or_ring_time.png")
    drawing.draw_beyond(models, docs / "planner.png")


def conditions(results: Results, rows: Sequence[Row], measured: Mapping[str, Any]) -> str:
    """Say what the figures stand for."""
    first = rows[0]
    times = ", ".join(f"{name} {each:g} s" for name, each in measured["seconds"].items())
    machines = {
        f"{each['machine']['cores']} cores, torch {each['machine']['torch']}"
        for each in results.values()
    }
    where = f" on {'; '.join(sorted(machines))}" if machines else ""
    return (
        f"{len(results)} of {len(rows)} rows have run{where}. Links: {first.rate_mbit:g} Mbit/s"
        f" each way. Batch: {first.batch} images a worker. Computation is replaced by waiting."
        f" Times of a forward and backward pass, measured on {measured['cores']} cores with"
        f" torch {measured['torch']}: {times}. **Model and computation are both divided by"
        f" {first.scale:g}, the link is not**; times, bytes and packets are multiplied by"
        f" {first.scale:g} again. Timed: {first.iterations} iterations, of ways with a period"
        f" one period of {first.period}."
    )
