"""Two islands of hosts with a slow link between them: is the hierarchy chosen, and faster?

python benchmarks/topology [--only auto,group,easgd] [--repeats 3] [--page]

Each run leaves a file in ``results`` beside this one; runs that are there are not repeated.
``--page`` also writes table and picture of docs/experiments/topology.md; alone it runs nothing
that is there. It needs what the laboratory needs (docs/lab.md).
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab import enclosure
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from smbox.errors import SmboxError
from smbox_torch.launcher import terminable
from topology import measuring, page, rows

OUT: Final = Path(__file__).with_name("results")
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "experiments" / "topology.md"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="ways of training: globs, with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps")
    parser.add_argument("--hidden", type=int, default=rows.Settings.hidden)
    parser.add_argument("--within-mbit", type=float, default=rows.Settings.within_mbit)
    parser.add_argument("--between-mbit", type=float, default=rows.Settings.between_mbit)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--page", action="store_true", help="write the page")
    told = parser.parse_args(words)
    told.ways = [
        way
        for way in rows.WAYS
        if any(fnmatch.fnmatchcase(way, glob) for glob in told.only.split(","))
    ]
    if not told.ways:
        parser.error(f"--only {told.only} names none of {', '.join(rows.WAYS)}")
    return told


def runs(told: argparse.Namespace, ways: Sequence[str]) -> list[rows.Settings]:
    """Return the runs that the command line asks for."""
    return rows.wanted(
        ways,
        told.repeats,
        told.share,
        hidden=told.hidden,
        within_mbit=told.within_mbit,
        between_mbit=told.between_mbit,
    )


def measure(missing: Sequence[rows.Settings], out: Path) -> None:
    """Do the runs, one after the other."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
    )
    with (
        terminable(),
        Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console()
        ) as bar,
    ):
        task = bar.add_task("", total=len(missing))
        for each in missing:
            bar.update(task, description=f"{each.way} {each.repeat}")
            rows.store(out / each.file_name, measuring.run(each))
            bar.advance(task)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, and show it."""
    told = arguments(words)
    missing = [
        each for each in runs(told, told.ways) if not (told.out / each.file_name).exists()
    ]
    if missing and not enclosure.is_inside():
        try:
            return enclosure.run([sys.executable, *sys.argv])
        except SmboxError as error:
            print(f"topology: {error}", file=sys.stderr)
            return 2
    measure(missing, told.out)
    found = rows.load(told.out, runs(told, list(rows.WAYS)))
    print(page.table(found))
    if told.page:
        page.write(PAGE, found)
    return 0
