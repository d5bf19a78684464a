"""Search settings on the validation pictures; the test set stays closed.

python benchmarks/convergence/tuning.py --only easgd-4 --lr 0.02,0.05 --period 1,4 --seeds 100

Prints a table of the tried settings with the accuracy on the validation pictures. Choose seeds
that are not among those of the report, and write what was chosen into ``catalog.py``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where result_files.py is

import command_line
import pages
import sweep
from catalog import ROWS
from intervals import interval
from results import accuracy, load
from rows import Row, Settings
from trainers import KINDS, moving_rate_of, period_of

SEEDS = "100,101,102"
SETTINGS: dict[str, Callable[[str], Sequence[float]]] = {
    "lr": command_line.decimals,
    "period": command_line.numbers,
    "moving_rate": command_line.decimals,
}
"""That can be searched, and how their values are read."""


def variants(row: Row, tried: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return a row with each combination of the values that are tried.

    Args:
        row: which keeps a setting of which nothing is tried, or that its algorithm lacks.
        tried: values by name of SETTINGS.
    """
    names = [each for each in SETTINGS if tried.get(each) and _has(row, each)]
    return [
        _with(row, dict(zip(names, values, strict=True)))
        for values in itertools.product(*(tried[name] for name in names))
    ]


def _has(row: Row, setting: str) -> bool:
    return setting == "lr" or KINDS[row.kind].takes(setting)


def _with(row: Row, chosen: dict[str, float]) -> Row:
    lr = chosen.pop("lr", row.lr)
    return replace(row, lr=lr, options=row.options | chosen)


def table(runs: Sequence[Settings], read: argparse.Namespace) -> str:
    """Lay out the accuracies of the settings that were tried."""
    head = ("row", "lr", "period", "moving rate", "validation accuracy, %", "runs")
    lines = []
    for row in dict.fromkeys(_identity(each) for each in runs):
        mine = [each for each in runs if _identity(each) == row]
        found = [one for each in mine for one in load(read.out, [each]).get(row[0], [])]
        if found:
            shown = interval([accuracy(each) for each in found])
            lines.append([*row, str(shown), str(shown.count)])
    return pages.table(head, lines)


def _identity(settings: Settings) -> tuple[str, ...]:
    row = settings.row
    shown = (row.lr, period_of(row), moving_rate_of(row))
    return row.name, *("" if value is None else f"{value:.3g}" for value in shown)


def main(words: Sequence[str] | None = None) -> None:
    """Do the runs that are missing and print the table."""
    parser = sweep.parser(__doc__, SEEDS)
    for name, read_values in SETTINGS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=read_values, help="numbers, with commas")
    read = parser.parse_args(words)
    runs = [
        Settings(row, seed, read.epochs, read.share, read.looks, "validation")
        for seed in read.seeds
        for name in command_line.selected(parser, read, ROWS)
        for row in variants(ROWS[name], vars(read))
    ]
    sweep.go(runs, read)
    print(table(runs, read))


if __name__ == "__main__":
    main()
