"""The command line: runs the rows that are missing, or writes the page of those that are there.

    python benchmarks/server_or_ring            # finished rows are not repeated
    python benchmarks/server_or_ring --page     # tables and pictures of docs/

The first call measures how long the models compute on all cores of this machine, so nothing
else should run then. Each row leaves OUT/MODEL-WORKERS-WAY-KEY.json.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab import needs
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from server_or_ring import compute, page, results, running
from server_or_ring.rows import Row, grid, parameters_of, predicted

OUT = Path(__file__).with_name("results")
"""Kept with the sources."""
DOCS = Path("docs")
START_S = 9.0
START_EACH_S = 1.5
"""Of a worker's process; torchrun's agent is one more."""


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="names of rows: globs, with commas")
    parser.add_argument(
        "--scale",
        type=float,
        default=Row.scale,
        help="divides the model and the computation, not the link",
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--docs", type=Path, default=DOCS)
    parser.add_argument("--budget-minutes", type=float, default=1e9)
    parser.add_argument("--dry-run", action="store_true", help="only tell the estimate")
    parser.add_argument("--page", action="store_true", help="only write tables and pictures")
    return parser.parse_args(words)


def estimate_s(row: Row) -> float:
    """Return the seconds that a row will take on a quiet machine."""
    foreseen = predicted(row, parameters_of(row.model))
    transfer_s = foreseen.iteration_s - row.compute_s
    starts = (2 if row.way == "ddp" else 1) * row.workers * START_EACH_S
    # Three transfers: the iteration that does not count, and making and reading the center.
    once = 3 * transfer_s * (row.period if row.timed == row.period else 1)
    return START_S + starts + (row.timed * foreseen.iteration_s + once) / row.scale


class Sweep:
    """Does the rows that are missing.

    Args:
        rows: that are asked for.
        read: the command line.
    """

    def __init__(self, rows: Sequence[Row], read: argparse.Namespace) -> None:
        self._read = read
        self._missing = [row for row in rows if not (read.out / row.file_name).exists()]
        self._console = Console()
        self._pace = 1.0
        self.failed: list[str] = []

    def tell(self) -> None:
        """Say how long the missing rows will take."""
        total_s = sum(map(estimate_s, self._missing))
        self._console.print(f"{len(self._missing)} rows are missing: {total_s / 60:.0f} min")

    def go(self) -> None:
        """Do them, or those that fit into the budget."""
        began_s = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            bar = progress.add_task("", total=1.0)
            for number, row in enumerate(self._missing):
                spent_s = time.monotonic() - began_s
                left_s = self._pace * sum(map(estimate_s, self._missing[number:]))
                if spent_s + self._pace * estimate_s(row) > 60 * self._read.budget_minutes:
                    self._console.print("the budget ends here")
                    return
                count = f"{number + 1} of {len(self._missing)}"
                progress.update(
                    bar,
                    description=f"{count}, {left_s / 60:.0f} min to go: {row.name}",
                    completed=spent_s / (spent_s + left_s),
                )
                self._do(row)

    def _do(self, row: Row) -> None:
        """Do one row; one that fails is told, and missing on the page."""
        began_s = time.monotonic()
        try:
            found = running.run(row)
        except running.RowFailedError as error:
            self.failed.append(row.name)
            self._console.print(f"{row.name}: failed: {error}", markup=False)
            return
        took_s = time.monotonic() - began_s
        self._pace = 0.7 * self._pace + 0.3 * took_s / estimate_s(row)
        results.store(self._read.out, row, found | {"took_s": took_s})
        foreseen = predicted(row, parameters_of(row.model))
        self._console.print(
            f"{row.name:26} {found['images_per_s']:7.2f} images/s, planner"
            f" {foreseen.images_per_s:7.2f}; {took_s:5.1f} s, {found['cores']:.1f} cores",
            markup=False,
        )


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line asks for."""
    read = arguments(words)
    lack = needs.missing()
    if lack and not read.page:
        print(f"there can be no laboratory: {lack}", file=sys.stderr)
        return 2
    if read.page and not (read.out / compute.FILE).exists():
        print("nothing was measured yet: call this without --page first", file=sys.stderr)
        return 2
    measured = compute.times(read.out)
    rows = list(grid(measured["seconds"], read.scale))
    if read.page:
        page.write(read.docs, results.load(read.out, rows), rows, measured)
        return 0
    globs = read.only.split(",")
    chosen = [row for row in rows if any(fnmatch.fnmatchcase(row.name, g) for g in globs)]
    sweep = Sweep(chosen, read)
    sweep.tell()
    if not read.dry_run:
        sweep.go()
    if sweep.failed:
        print(f"failed, and missing on the page: {', '.join(sweep.failed)}", file=sys.stderr)
    return 1 if sweep.failed else 0
