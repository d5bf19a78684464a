"""The command line: ``python benchmarks/memory_or_messages [--only GLOB,...] [--page]``."""

from __future__ import annotations

import argparse
import fnmatch
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from memory_or_messages import measuring, page
from memory_or_messages.rows import ROWS, Row, brief, file_name
from smbox_torch.launcher import terminable

OUT = Path(__file__).with_name("results")
"""Kept with the sources: whoever has them can go on."""
DOCS = Path(__file__).resolve().parents[2] / "docs" / "experiments"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="memory_or_messages",
        description="Measure the rows that are missing; finished rows are not repeated.",
    )
    parser.add_argument("--only", default="*", help="names of rows: globs, with commas")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--page", action="store_true", help="only write the page and its plot")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page")
    parser.add_argument("--brief", action="store_true", help="a second a row: to try it out")
    parser.add_argument("--dry-run", action="store_true", help="only tell the estimate")
    read = parser.parse_args(words)
    if not selected(read.only):
        parser.error(f"--only {read.only} names none of the rows")
    return read


def selected(only: str) -> list[Row]:
    """Return the rows that one of the globs matches."""
    globs = only.split(",")
    return [row for row in ROWS if any(fnmatch.fnmatchcase(row.name, each) for each in globs)]


@dataclass
class Clock:
    """Knows how long the rest will take: by the rows' estimates, and what those before took."""

    ratios: list[float] = field(default_factory=list)

    def rest_s(self, rows: Sequence[Row]) -> float:
        """Return how long these rows will take, in seconds."""
        ratio = statistics.fmean(self.ratios) if self.ratios else 1.0
        return ratio * sum(row.estimate_s for row in rows)

    def learn(self, row: Row, took_s: float) -> None:
        """Take in a finished row."""
        self.ratios.append(took_s / row.estimate_s)


def go(rows: Sequence[Row], out: Path, console: Console) -> None:
    """Measure the rows and keep their results."""
    clock = Clock()
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn())
    with measuring.ways_for(rows) as ways, Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=float(len(rows)))
        for index, row in enumerate(rows):
            rest = f"{row.name}, {clock.rest_s(rows[index:]):.0f} s to go"
            progress.update(bar, description=rest, completed=float(index))
            began_s = progress.get_time()
            result = measuring.measure(row, ways)
            measuring.store(out, row, result)
            clock.learn(row, progress.get_time() - began_s)
            medians = {name: statistics.median(f) for name, f in result["figures"].items()}
            told = "  ".join(f"{name} {figure:.3g}" for name, figure in medians.items())
            console.print(f"{row.name:24} {told}", markup=False, soft_wrap=True)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, or write the page."""
    read = arguments(words)
    # gRPC must not look after our programs, which exec at once.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    if read.page:
        page.write(measuring.load(read.out, ROWS), read.docs)
        return 0
    console = Console()
    rows = [brief(row) for row in selected(read.only)] if read.brief else selected(read.only)
    missing = [row for row in rows if not (read.out / file_name(row)).exists()]
    console.print(
        f"{len(missing)} of {len(rows)} rows are missing: some {Clock().rest_s(missing):.0f} s"
    )
    if missing and not read.dry_run:
        with terminable():
            go(missing, read.out, console)
    return 0
