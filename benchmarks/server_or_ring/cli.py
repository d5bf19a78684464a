"""The command line: runs the rows that are missing, or writes the page of those that are there.

    python benchmarks/server_or_ring            # finished rows are not repeated
    python benchmarks/server_or_ring --page     # tables and pictures of docs/

The first call measures how long the models compute on all cores of this machine, so nothing
else should run then. Each row leaves OUT/MODEL-WORKERS-WAY-KEY.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import command_line
import pages
import result_files
from estimator import Estimator
from lab import needs
from pending_runs import PendingRuns, Tick
from result_files import Result

from server_or_ring import compute, page, running
from server_or_ring.rows import Row, grid, parameters_of, predicted

OUT = Path(__file__).with_name("results")
"""Kept with the sources."""
START_S = 9.0
START_EACH_S = 1.5
"""Of a worker's process; torchrun's agent is one more."""


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; ``only`` becomes the names of the rows."""
    names = "only", "page", "budget_hours", "dry_run"
    parser = command_line.parser(__doc__, *names, out=OUT, docs=pages.DOCS.parent)
    parser.add_argument(
        "--scale",
        type=float,
        default=Row.scale,
        help="divides the model and the computation, not the link",
    )
    read = parser.parse_args(words)
    rows = grid(dict.fromkeys(compute.MEASURED, 0.0))
    read.only = command_line.selected(parser, read, [row.name for row in rows])
    return read


def estimate_s(row: Row) -> float:
    """Return the seconds that a row will take on a quiet machine."""
    foreseen = predicted(row, parameters_of(row.model))
    transfer_s = foreseen.iteration_s - row.compute_s
    starts = (2 if row.way == "ddp" else 1) * row.workers * START_EACH_S
    # Three transfers: the iteration that does not count, and making and reading the center.
    once = 3 * transfer_s * (row.period if row.timed == row.period else 1)
    return START_S + starts + (row.timed * foreseen.iteration_s + once) / row.scale


def run(row: Row, _: Tick) -> Result:
    """Run a row, and say in its result how long that took."""
    began_s = time.monotonic()
    return running.run(row) | {"took_s": time.monotonic() - began_s}


def shown(row: Row, found: Result) -> str:
    """Word a result."""
    foreseen = predicted(row, parameters_of(row.model))
    return (
        f"{found['images_per_s']:7.2f} images/s, planner {foreseen.images_per_s:7.2f};"
        f" {found['took_s']:5.1f} s, {found['cores']:.1f} cores"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line asks for."""
    read = arguments(words)
    lack = needs.missing()
    if lack and not read.page:
        print(f"there can be no laboratory: {lack}", file=sys.stderr)
        return 2
    is_measured = (read.out / compute.FILE).exists()
    if read.page and not is_measured:
        print("nothing was measured yet: call this without --page first", file=sys.stderr)
        return 2
    # A dry run measures nothing: it takes the times that are kept with the sources.
    measured = compute.times(read.out if is_measured or not read.dry_run else OUT)
    rows = list(grid(measured["seconds"], read.scale))
    if read.page:
        page.write(read.docs, dict(result_files.load(read.out, rows)), rows, measured)
        return 0
    chosen = [row for row in rows if row.name in read.only]
    missing = PendingRuns(chosen, read.out, Estimator(estimate_s, alike=lambda row: row))
    missing.report()
    if read.dry_run:
        return 0
    budget_s = 3600.0 * read.budget_hours
    failed = missing.run(run, shown, budget_s=budget_s, failures=(running.RowFailedError,))
    if failed:
        print(f"failed, and missing on the page: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
