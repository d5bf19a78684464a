"""Run what is missing of the experiment, or write its page.

python benchmarks/sandblaster [--only 'commands-*'] [--sizes 1000000,10000000]
python benchmarks/sandblaster --page

Each row leaves WAY-SIZE.json in ``results`` beside this file, and is not measured again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import command_line
import result_files
from estimator import Estimator
from pending_runs import PendingRuns
from result_files import Result

from sandblaster import page
from sandblaster.measuring import measure
from sandblaster.rows import WARM, Row
from sandblaster.ways import WAYS

OUT: Final = Path(__file__).with_name("results")
SIZES: Final = "1000000,10000000"
ITERATION_S: Final = 1e-7
"""Of one parameter, with its evaluation; for the estimate."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``only`` becomes the rows."""
    parser = command_line.parser(__doc__, "only", "page", "docs", "dry_run", out=OUT)
    parser.add_argument(
        "--sizes", type=command_line.numbers, default=SIZES, help="numbers, with commas"
    )
    parser.add_argument("--iterations", type=int, default=10)
    read = parser.parse_args(words)
    rows = {
        row.name: row for size in sorted(read.sizes) for row in (Row(way, size) for way in WAYS)
    }
    read.only = [rows[name] for name in command_line.selected(parser, read, rows)]
    return read


def shown(_: Row, result: Result) -> str:
    """Word a result."""
    count = len(result["seconds"])
    return (
        f"{result['nbytes'] / count:,.0f} bytes an iteration,"
        f" {statistics.median(result['seconds']):.3f} s"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, or write the page."""
    read = arguments(words)
    if read.page:
        page.write([result for _, result in result_files.load(read.out, read.only)], read.docs)
        return 0
    each_s = ITERATION_S * (WARM + read.iterations)
    estimator = Estimator(lambda row: each_s * row.size, alike=lambda row: row)
    missing = PendingRuns(read.only, read.out, estimator)
    missing.report()
    if not read.dry_run:
        missing.run(lambda row, tick: measure(row, read.iterations, tick), shown)
    return 0
