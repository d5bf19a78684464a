"""Two islands of hosts with a slow link between them: is the hierarchy chosen, and faster?

python benchmarks/topology [--only auto,group,easgd] [--repeats 3]    runs what is missing
python benchmarks/topology --page                                     writes the page

Each run leaves a file in ``results`` beside this one; runs that are there are not repeated.
The runs need what the laboratory needs (docs/lab.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import command_line
import result_files
from estimator import Estimator
from lab import enclosure
from pending_runs import PendingRuns
from result_files import Result

from smbox.errors import SmboxError
from topology import measuring, page, rows

OUT: Final = Path(__file__).with_name("results")
EACH_S: Final = 25.0
"""Of a run; for the estimate."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``only`` becomes the names of the ways of training."""
    parser = command_line.parser(__doc__, "only", "page", "docs", "dry_run", out=OUT)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps")
    parser.add_argument("--hidden", type=int, default=rows.Settings.hidden)
    parser.add_argument("--within-mbit", type=float, default=rows.Settings.within_mbit)
    parser.add_argument("--between-mbit", type=float, default=rows.Settings.between_mbit)
    told = parser.parse_args(words)
    told.only = command_line.selected(parser, told, rows.WAYS)
    return told


def runs(told: argparse.Namespace, ways: Sequence[str]) -> list[rows.Settings]:
    """Return the runs that the command line asks for."""
    return rows.wanted(
        ways,
        told.repeats,
        told.share,
        hidden=told.hidden,
        within_mbit=told.within_mbit,
        between_mbit=told.between_mbit,
    )


def shown(_: rows.Settings, result: Result) -> str:
    """Word a result."""
    return f"{result['images_per_s']:.0f} images/s"


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, or write the page."""
    told = arguments(words)
    if told.page:
        found = result_files.grouped(
            told.out, runs(told, list(rows.WAYS)), lambda each: each.way
        )
        page.write(found, told.docs)
        return 0
    estimator = Estimator(lambda _: EACH_S, alike=lambda each: each.way)
    missing = PendingRuns(runs(told, told.only), told.out, estimator)
    if missing.runs and not told.dry_run and not enclosure.is_inside():
        try:
            return enclosure.run([sys.executable, *sys.argv])
        except SmboxError as error:
            print(f"topology: {error}", file=sys.stderr)
            return 2
    missing.report()
    if not told.dry_run:
        missing.run(lambda each, _: measuring.run(each), shown)
    return 0
