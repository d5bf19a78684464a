"""Search learning rates and moving rates on the validation pictures; the test set stays closed.

python benchmarks/convergence/tuning.py --only easgd-plain-4 --lr 0.05,0.1,0.2 --seeds 100,101

Prints a table of the tried settings with the accuracy on the validation pictures. Choose seeds
that are not among those of the report, and write what was chosen into ``catalog.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where kept.py is

import command_line
import pages
import sweep
from catalog import ROWS
from intervals import interval
from results import accuracy, load
from rows import Row, Settings
from trainers import KINDS, moving_rate_of

SEEDS = "100,101,102"


def variants(row: Row, lrs: Sequence[float], rates: Sequence[float]) -> list[Row]:
    """Return a row with each of the learning rates and moving rates; none named: its own."""
    with_lr = [replace(row, lr=lr) for lr in lrs] or [row]
    if not rates or not KINDS[row.kind].takes("moving_rate"):
        return with_lr
    return [
        replace(each, options=each.options | {"moving_rate": rate})
        for each in with_lr
        for rate in rates
    ]


def table(runs: Sequence[Settings], read: argparse.Namespace) -> str:
    """Lay out the accuracies of the settings that were tried."""
    head = ("row", "lr", "moving rate", "validation accuracy, %", "runs")
    lines = []
    for row in dict.fromkeys(_identity(each) for each in runs):
        mine = [each for each in runs if _identity(each) == row]
        found = [one for each in mine for one in load(read.out, [each]).get(row[0], [])]
        if found:
            shown = interval([accuracy(each) for each in found])
            lines.append([*row, str(shown), str(shown.count)])
    return pages.table(head, lines)


def _identity(settings: Settings) -> tuple[str, str, str]:
    rate = moving_rate_of(settings.row)
    return settings.row.name, f"{settings.row.lr:g}", "" if rate is None else f"{rate:.3g}"


def main(words: Sequence[str] | None = None) -> None:
    """Do the runs that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False)
    parser.add_argument("--lr", default="", help="numbers, with commas")
    parser.add_argument("--moving-rate", default="", help="numbers, with commas")
    own, rest = parser.parse_known_args(words)
    read = sweep.arguments(rest if "--seeds" in rest else [*rest, "--seeds", SEEDS])
    lrs, rates = (
        [float(each) for each in told.split(",") if each] for told in (own.lr, own.moving_rate)
    )
    runs = [
        Settings(row, seed, read.epochs, read.share, read.looks, "validation")
        for seed in command_line.numbers(read.seeds)
        for name in read.only
        for row in variants(ROWS[name], lrs, rates)
    ]
    sweep.go(runs, read)
    print(table(runs, read))


if __name__ == "__main__":
    main()
