"""The command line: ``python benchmarks/shmcaffe [--data cifar10.tar.gz] [--page]``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import command_line
import sweep
import task
from results import load
from rows import Settings

from shmcaffe import digits_set, page
from shmcaffe.catalog import ROWS, SETS

SEEDS = "0,1,2"
OUT = Path(__file__).with_name("results")
"""Kept with the sources, a folder for each set: whoever has them can go on."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``only`` becomes the names of the rows."""
    names = "only", "page", "docs", "budget_hours", "dry_run"
    parser = command_line.parser(__doc__, *names, out=OUT, seeds=SEEDS)
    parser.add_argument(
        "--data", type=Path, help="CIFAR-10, a tar.gz of JPEGs or torchvision's folder"
    )
    parser.add_argument("--cache", type=Path, help="folder for the decoded pictures")
    parser.add_argument("--epochs", type=float, help="None: the set's")
    read = parser.parse_args(words)
    read.only = command_line.selected(parser, read, ROWS)
    return read


def wanted(read: argparse.Namespace, pictures: str) -> list[Settings]:
    """Return the runs that are asked for: seed by seed, row by row.

    Args:
        read: the command line.
        pictures: name of the set.
    """
    epochs = read.epochs or SETS[pictures].epochs
    return [
        Settings(ROWS[name], seed, epochs, looks=0) for seed in read.seeds for name in read.only
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Do the runs that are missing, or write the page."""
    read = arguments(words)
    if read.page:
        found = {name: load(read.out / name, wanted(read, name)) for name in SETS}
        page.write({name: results for name, results in found.items() if results}, read.docs)
        return 0
    pictures = "digits" if read.data is None else "cifar10"
    read.cache = read.cache or Path(tempfile.gettempdir()) / f"smbox-{pictures}"
    read.out /= pictures
    if not read.dry_run:
        if read.data is None:
            digits_set.decode(read.cache)
        else:
            task.decode(read.data, read.cache)
    sweep.go(wanted(read, pictures), read, SETS[pictures].training_pictures)
    return 0
