"""Run all rows, one run after the other; finished runs are not repeated.

python benchmarks/convergence/sweep.py --data cifar10.tar.gz [--budget-hours 12] [--dry-run]

Every run leaves OUT/ROW-SEED-KEY.json, by default in ``results`` beside this file. The key
stands for all settings: a changed setting repeats the runs of its rows, and no others. All rows
run with the first seed; rows that decide a claim (``claims``) then run with the second, and so
on. So whatever interrupts the sweep leaves a balanced report. Calling it again goes on with the
runs that are missing; ``report.py`` makes the page of those that are there.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import task
from catalog import ROWS
from claims import CLAIMED
from cluster import Cluster, RunFailedError
from estimate import TRAINING_PICTURES, Estimator, hours
from parts import parts
from results import Result, gathered, load, store
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rows import EPOCHS, LOOKS, SHARE, Settings
from trainers import KINDS

import smbox

SEEDS = "0,1,2,3,4"
OUT = Path(__file__).with_name("results")
"""Kept with the sources: whoever has them can go on."""
PATIENCE = 10.0
"""A run has failed after so many times its estimate, and PATIENCE_S more."""
PATIENCE_S = 900.0


def run(
    settings: Settings, cache: Path, told: Callable[[float], None], timeout_s: float
) -> Result:
    """Run one row with one seed.

    Args:
        settings: of the run.
        cache: folder of the decoded pictures.
        told: is called with the progress, from 0 to 1.
        timeout_s: after which the run has failed.

    Returns:
        The figures of the run, ready for JSON.

    Raises:
        RunFailedError: a worker failed; the message holds what the workers printed.
    """
    began_s = time.monotonic()
    train, _ = task.load(cache, settings.share)
    kind = KINDS[settings.row.kind]
    planned = parts(settings.row, settings.samples(len(train)), pace=kind.pace, fate=kind.fate)
    with tempfile.TemporaryDirectory(prefix="smbox-convergence-") as name:
        folder = Path(name)
        told_workers = {"settings": settings.as_json(), "cache": str(cache.resolve())}
        (folder / "run.json").write_text(json.dumps(told_workers))
        cluster = Cluster(settings.row, planned, folder)
        node_cpu_s = cluster.run(told=told, timeout_s=timeout_s)
        found = cluster.found()
    took_s = time.monotonic() - began_s
    killed = sum(part.steps for part in planned if part.is_killed) * settings.row.batch
    return gathered(settings, found, killed=killed, node_cpu_s=node_cpu_s, took_s=took_s)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="tar.gz of JPEGs, or torchvision's folder")
    cache = Path(tempfile.gettempdir()) / "smbox-cifar10"
    parser.add_argument("--cache", type=Path, default=cache, help="for the decoded pictures")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", default="*", help="names of rows: globs, with commas")
    parser.add_argument("--seeds", default=SEEDS, help="numbers, with commas")
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--share", type=float, default=SHARE, help="of the training pictures")
    parser.add_argument("--looks", type=int, default=LOOKS, help="points of the curves")
    parser.add_argument("--budget-hours", type=float, help="start no run that would end later")
    parser.add_argument("--dry-run", action="store_true", help="only tell the estimate")
    read = parser.parse_args(words)
    if not selected(read.only):
        parser.error(f"--only {read.only} names none of the rows {', '.join(ROWS)}")
    return read


def selected(only: str) -> list[str]:
    """Return the names of the rows that one of the globs matches."""
    globs = only.split(",")
    return [name for name in ROWS if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]


def wanted(read: argparse.Namespace, names: Sequence[str]) -> list[Settings]:
    """Return the runs that are asked for: seed by seed, row by row.

    Args:
        read: seeds, epochs, share and looks.
        names: of the rows. Those that decide no claim run with the first seed alone.
    """
    first, *others = (int(seed) for seed in read.seeds.split(","))
    pairs = [(name, first) for name in names]
    pairs += [(name, seed) for seed in others for name in names if name in CLAIMED]
    return [
        Settings(ROWS[name], seed, read.epochs, read.share, read.looks) for name, seed in pairs
    ]


class Sweep:
    """Does runs, and knows how long the rest will take.

    Args:
        runs: that are asked for, in order.
        read: the command line.
        console: where to show it.
        training_pictures: of the set, for estimates.
    """

    def __init__(
        self,
        runs: Sequence[Settings],
        read: argparse.Namespace,
        console: Console,
        training_pictures: int,
    ) -> None:
        self._read = read
        self._console = console
        finished = load(read.out, runs)
        self._estimator = Estimator(
            (each for mine in finished.values() for each in mine), training_pictures
        )
        self._missing = [each for each in runs if not (read.out / each.file_name).exists()]
        self._count = len(runs)
        self.failed: list[str] = []

    def tell(self) -> None:
        """Say how long the missing runs will take, row by row."""
        seconds: dict[str, list[float]] = {}
        for each in self._missing:
            seconds.setdefault(each.row.name, []).append(self._estimator.seconds(each))
        for name, mine in seconds.items():
            self._console.print(f"{name:24} {len(mine)} x {mine[0]:6.0f} s")
        total_s = sum(sum(mine) for mine in seconds.values())
        self._console.print(
            f"{len(self._missing)} of {self._count} runs are missing: some {hours(total_s)}"
        )

    def go(self) -> None:
        """Do the missing runs, or those that fit into the budget."""
        began_s = time.monotonic()
        budget_s = (self._read.budget_hours or 1e9) * 3600.0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            all_runs = progress.add_task("", total=1.0)
            for index, settings in enumerate(self._missing):
                rest_s = sum(map(self._estimator.seconds, self._missing[index:]))
                spent_s = time.monotonic() - began_s
                here = f"run {index + 1} of {len(self._missing)}, {hours(rest_s)} to go"
                progress.update(
                    all_runs, description=here, completed=spent_s / (spent_s + rest_s)
                )
                if spent_s + self._estimator.seconds(settings) > budget_s:
                    self._console.print(f"the budget ends before run {index + 1}")
                    return
                bar = progress.add_task(f"{settings.row.name} {settings.seed}", total=1.0)
                self._do(settings, lambda done, bar=bar: progress.update(bar, completed=done))
                progress.remove_task(bar)

    def _do(self, settings: Settings, told: Callable[[float], None]) -> None:
        """Do one run; one that fails is told, and missing in the report."""
        timeout_s = PATIENCE_S + PATIENCE * self._estimator.seconds(settings)
        name = f"{settings.row.name} {settings.seed}"
        try:
            result = run(settings, self._read.cache, told, timeout_s)
        except (RunFailedError, smbox.SmboxError) as error:
            self.failed.append(name)
            self._console.print(f"{name}: failed: {error}", markup=False)
            return
        store(self._read.out / settings.file_name, result)
        self._estimator.learn(settings, result["took_s"])
        self._console.print(
            f"{name:26} {result['accuracy']:6.1%}  {result['took_s']:6.1f} s"
            f"  {result['cpu_s']:6.1f} CPU s  {result['error']}",
            markup=False,
        )


def main(words: Sequence[str] | None = None) -> None:
    """Do the runs that are missing."""
    read = arguments(words)
    go(wanted(read, selected(read.only)), read)


def go(
    runs: Sequence[Settings],
    read: argparse.Namespace,
    training_pictures: int = TRAINING_PICTURES,
) -> None:
    """Do these runs as the command line says.

    Args:
        runs: in order.
        read: the command line.
        training_pictures: of the set, for estimates.

    Raises:
        SystemExit: some runs failed; the others are done.
    """
    sweep = Sweep(runs, read, Console(), training_pictures)
    sweep.tell()
    if read.dry_run:
        return
    if read.data is not None:
        task.decode(read.data, read.cache)
    sweep.go()
    if sweep.failed:
        sys.exit(f"failed, and missing in the report: {', '.join(sweep.failed)}")


if __name__ == "__main__":
    main()
