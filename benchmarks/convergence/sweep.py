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
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where result_files.py is

import command_line
import result_files
import task
from catalog import ROWS
from claims import CLAIMED, UNDECIDED
from cluster import Cluster, RunFailedError
from estimate import TRAINING_PICTURES, estimator
from parts import parts
from pending_runs import PendingRuns, Tick
from result_files import Result
from results import gathered
from rows import EPOCHS, LOOKS, SHARE, Settings
from trainers import KINDS

import smbox

SEEDS = "0,1,2,3,4"
MORE_SEEDS = "5,6,7,8,9"
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


def parser(description: str, seeds: str) -> argparse.ArgumentParser:
    """Return a parser of what decides which runs are done, and how."""
    made = command_line.parser(
        description, "only", "budget_hours", "dry_run", out=OUT, seeds=seeds
    )
    made.add_argument("--data", type=Path, help="tar.gz of JPEGs, or torchvision's folder")
    cache = Path(tempfile.gettempdir()) / "smbox-cifar10"
    made.add_argument("--cache", type=Path, default=cache, help="for the decoded pictures")
    made.add_argument("--epochs", type=float, default=EPOCHS)
    made.add_argument("--share", type=float, default=SHARE, help="of the training pictures")
    made.add_argument("--looks", type=int, default=LOOKS, help="points of the curves")
    return made


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``only`` becomes the names of the rows."""
    own = parser(__doc__, SEEDS)
    add_more_seeds(own)
    read = own.parse_args(words)
    read.only = command_line.selected(own, read, ROWS)
    return read


def add_more_seeds(parser: argparse.ArgumentParser) -> None:
    """Let the command line tell the seeds of rows that the others leave undecided."""
    words = "of rows whose goals the others left undecided"
    parser.add_argument(
        "--more-seeds", type=command_line.numbers, default=MORE_SEEDS, help=words
    )


def wanted(read: argparse.Namespace, names: Sequence[str]) -> list[Settings]:
    """Return the runs that are asked for: seed by seed, row by row.

    Args:
        read: seeds, more_seeds, epochs, share and looks.
        names: of the rows. Those that decide no claim run with the first seed alone.
    """
    first, *others = read.seeds
    pairs = [(name, first) for name in names]
    pairs += [(name, seed) for seed in others for name in names if name in CLAIMED]
    pairs += [(name, seed) for seed in read.more_seeds for name in names if name in UNDECIDED]
    return [
        Settings(ROWS[name], seed, read.epochs, read.share, read.looks) for name, seed in pairs
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Do the runs that are missing."""
    read = arguments(words)
    go(wanted(read, read.only), read)


def go(
    runs: Sequence[Settings],
    read: argparse.Namespace,
    training_pictures: int = TRAINING_PICTURES,
) -> None:
    """Do these runs as the command line says; a run that fails is missing in the report.

    Args:
        runs: in order.
        read: the command line.
        training_pictures: of the set, for estimates.

    Raises:
        SystemExit: some runs failed; the others are done.
    """
    finished = [result for _, result in result_files.load(read.out, runs)]
    estimates = estimator(finished, training_pictures)
    missing = PendingRuns(runs, read.out, estimates)
    for name, count in Counter(each.row.name for each in missing.runs).items():
        one = next(each for each in missing.runs if each.row.name == name)
        print(f"{name:24} {count} x {estimates.seconds(one):6.0f} s")
    missing.report()
    if read.dry_run:
        return
    if read.data is not None:
        task.decode(read.data, read.cache)

    def do(settings: Settings, tick: Tick) -> Result:
        timeout_s = PATIENCE_S + PATIENCE * estimates.seconds(settings)
        return run(settings, read.cache, tick, timeout_s)

    failed = missing.run(
        do,
        _shown,
        budget_s=3600.0 * read.budget_hours,
        failures=(RunFailedError, smbox.SmboxError),
    )
    if failed:
        sys.exit(f"failed, and missing in the report: {', '.join(failed)}")


def _shown(_: Settings, result: Result) -> str:
    return (
        f"{result['accuracy']:6.1%}  {result['took_s']:6.1f} s"
        f"  {result['cpu_s']:6.1f} CPU s  {result['error']}"
    )


if __name__ == "__main__":
    main()
