"""Run what is missing of the experiment, or write its page.

python benchmarks/sparse [--only 'svm-*'] [--seeds 0,1,2]    runs what is missing
python benchmarks/sparse --page                              writes docs/experiments

Each run leaves one JSON file in ``results`` beside this file; a run whose file is there is not
repeated, unless a setting was changed. Workers have one thread each; four of them need four
cores to themselves.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sparse import page
from sparse.rows import EPOCHS, LIMIT_S, OUT, Settings, rows, store
from sparse.worker import Workers

__all__ = ["arguments", "main", "wanted"]


def wanted(told: argparse.Namespace) -> list[Settings]:
    """Return the runs that are asked for, seed by seed."""
    globs = told.only.split(",")
    return [
        Settings(row, int(seed), told.epochs, told.limit_s, told.share)
        for seed in told.seeds.split(",")
        for row in rows()
        if any(fnmatch.fnmatchcase(row.name, glob) for glob in globs)
    ]


def machine() -> dict[str, Any]:
    """Return what the figures depend on, beside the settings."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def run(missing: Sequence[Settings], out: Path, share: float, console: Console) -> None:
    """Do runs and keep their results."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("examples", total=len(missing))
        count = max(settings.row.workers for settings in missing)
        with Workers(share, count) as workers:
            for settings in missing:
                progress.update(task, description=f"{settings.row.name} {settings.seed}")
                result = workers.run(settings) | {"machine": machine()}
                store(out / settings.file_name, result)
                progress.advance(task)
                console.print(
                    f"{settings.row.name:28} {result['updates_per_s']:9,.0f} updates/s"
                    f"  objective {result['objective']:.4f}  accuracy {result['accuracy']:.1%}"
                    f"  {result['seconds']:5.1f} s  {result['done']:.0%} done"
                )


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python benchmarks/sparse", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="*", help="names of rows: globs, with commas")
    parser.add_argument("--seeds", default="0", help="numbers, with commas")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of one run")
    parser.add_argument("--share", type=float, default=1.0, help="of the source files")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", type=Path, nargs="?", const=page.PAGE, help="write the page")
    told = parser.parse_args(words)
    if not wanted(told):
        names = ", ".join(row.name for row in rows())
        parser.error(f"--only {told.only} names none of {names}")
    return told


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line asks for."""
    told = arguments(words)
    runs = wanted(told)
    if told.page is not None:
        page.write(told.page, told.out, runs)
        return
    missing = [each for each in runs if not (told.out / each.file_name).exists()]
    if missing:
        run(missing, told.out, told.share, Console())
