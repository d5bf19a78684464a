"""The command line: ``python benchmarks/memory_or_messages [--only GLOB,...] [--page]``."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import command_line
import result_files
from estimator import Estimator
from pending_runs import PendingRuns
from result_files import Result

from memory_or_messages import measuring, page
from memory_or_messages.rows import ROWS, Row, brief

OUT = Path(__file__).with_name("results")
"""Kept with the sources: whoever has them can go on."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``only`` becomes the names of the rows."""
    parser = command_line.parser(__doc__, "only", "page", "docs", "dry_run", out=OUT)
    parser.add_argument("--brief", action="store_true", help="a second a row: to try it out")
    read = parser.parse_args(words)
    read.only = command_line.selected(parser, read, [row.name for row in ROWS])
    return read


def shown(_: Row, result: Result) -> str:
    """Word a result: the median of each way."""
    medians = {name: statistics.median(each) for name, each in result["figures"].items()}
    return "  ".join(f"{name} {figure:.3g}" for name, figure in medians.items())


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, or write the page."""
    read = arguments(words)
    # gRPC must not look after our programs, which exec at once.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    if read.page:
        page.write(
            {row.name: result for row, result in result_files.load(read.out, ROWS)}, read.docs
        )
        return 0
    rows = [brief(row) if read.brief else row for row in ROWS if row.name in read.only]
    estimator = Estimator(lambda row: row.estimate_s, alike=lambda row: row)
    missing = PendingRuns(rows, read.out, estimator)
    missing.report()
    if not read.dry_run:
        with measuring.ways_for(missing.runs) as ways:
            missing.run(lambda row, _: measuring.measure(row, ways), shown)
    return 0
