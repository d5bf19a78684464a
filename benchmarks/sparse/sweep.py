"""Run what is missing of the experiment, or write its page.

python benchmarks/sparse [--only 'svm-*'] [--seeds 0,1,2]    runs what is missing
python benchmarks/sparse --page                              writes docs/experiments

Each run leaves one JSON file in ``results`` beside this file; a run whose file is there is not
repeated, unless a setting was changed. Workers have one thread each; four of them need four
cores to themselves.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from typing import Any

import command_line
import numpy as np
import result_files
import torch
from estimator import Estimator
from pending_runs import PendingRuns
from result_files import Result

from smbox.cli.bench.command import cpu_name
from sparse import page
from sparse.rows import EPOCHS, LIMIT_S, OUT, Settings, rows
from sparse.worker import Workers

__all__ = ["arguments", "main", "wanted"]


def wanted(told: argparse.Namespace) -> list[Settings]:
    """Return the runs that are asked for, seed by seed."""
    return [
        Settings(row, seed, told.epochs, told.limit_s, told.share)
        for seed in told.seeds
        for row in rows()
        if row.name in told.only
    ]


def machine() -> dict[str, Any]:
    """Return what the figures depend on, beside the settings."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }


def shown(_: Settings, result: Result) -> str:
    """Word a result."""
    return (
        f"{result['updates_per_s']:9,.0f} updates/s"
        f"  objective {result['objective']:.4f}  accuracy {result['accuracy']:.1%}"
        f"  {result['seconds']:5.1f} s  {result['done']:.0%} done"
    )


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``only`` becomes the names of the rows."""
    parser = command_line.parser(__doc__, "only", "page", "docs", "dry_run", out=OUT, seeds="0")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of one run")
    parser.add_argument("--share", type=float, default=1.0, help="of the source files")
    told = parser.parse_args(words)
    told.only = command_line.selected(parser, told, [row.name for row in rows()])
    return told


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line asks for."""
    told = arguments(words)
    runs = wanted(told)
    if told.page:
        page.write(result_files.grouped(told.out, runs, lambda each: each.row), told.docs)
        return
    estimator = Estimator(lambda each: each.limit_s, alike=lambda each: each.row)
    missing = PendingRuns(runs, told.out, estimator)
    missing.report()
    if missing.runs and not told.dry_run:
        count = max(settings.row.workers for settings in missing.runs)
        with Workers(told.share, count) as workers:
            missing.run(lambda each, _: workers.run(each) | {"machine": machine()}, shown)
