"""The command line: ``python benchmarks/shmcaffe [--data cifar10.tar.gz] [--page]``."""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
from collections.abc import Sequence
from pathlib import Path

import sweep
import task
from results import load
from rows import Settings

from shmcaffe import digits_set, page
from shmcaffe.catalog import ROWS, SETS
from smbox_torch.launcher import terminable

SEEDS = "0,1,2"
OUT = Path(__file__).with_name("results")
"""Kept with the sources, a folder for each set: whoever has them can go on."""
DOCS = Path(__file__).resolve().parents[2] / "docs" / "experiments"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="shmcaffe",
        description="Do the runs that are missing, seed by seed; finished ones are kept.",
    )
    parser.add_argument(
        "--data", type=Path, help="CIFAR-10, a tar.gz of JPEGs or torchvision's folder"
    )
    parser.add_argument("--cache", type=Path, help="folder for the decoded pictures")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--only", default="*", help="names of rows: globs, with commas")
    parser.add_argument("--seeds", default=SEEDS, help="numbers, with commas")
    parser.add_argument("--epochs", type=float, help="None: the set's")
    parser.add_argument("--budget-hours", type=float, help="start no run that would end later")
    parser.add_argument("--page", action="store_true", help="only write the page and its plot")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page")
    parser.add_argument("--dry-run", action="store_true", help="only tell the estimate")
    read = parser.parse_args(words)
    if not selected(read.only):
        parser.error(f"--only {read.only} names none of the rows {', '.join(ROWS)}")
    return read


def selected(only: str) -> list[str]:
    """Return the names of the rows that one of the globs matches."""
    globs = only.split(",")
    return [name for name in ROWS if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]


def wanted(read: argparse.Namespace, pictures: str) -> list[Settings]:
    """Return the runs that are asked for: seed by seed, row by row.

    Args:
        read: the command line.
        pictures: name of the set.
    """
    epochs = read.epochs or SETS[pictures].epochs
    return [
        Settings(ROWS[name], int(seed), epochs, looks=0)
        for seed in read.seeds.split(",")
        for name in selected(read.only)
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
    with terminable():
        sweep.go(wanted(read, pictures), read, SETS[pictures].training_pictures)
    return 0
