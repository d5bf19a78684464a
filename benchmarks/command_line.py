"""Command lines of experiments: the arguments that they have in common, and rows by globs."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pages import DOCS


def numbers(words: str) -> list[int]:
    """Return the integers of an argument such as ``--seeds``."""
    return [int(each) for each in words.split(",")]


def decimals(words: str) -> list[float]:
    """Return the numbers of an argument such as ``--lr``."""
    return [float(each) for each in words.split(",")]


ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "only": {"default": "*", "help": "names of rows: globs, with commas"},
    "seeds": {"type": numbers, "help": "numbers, with commas"},
    "out": {"type": Path, "help": "folder of the results"},
    "page": {"action": "store_true", "help": "only write the page and its plot"},
    "docs": {"type": Path, "default": DOCS, "help": "folder of the page"},
    "budget_hours": {
        "type": float,
        "default": float("inf"),
        "help": "start no run that would end later",
    },
    "json": {"action": "store_true", "help": "rows as JSON instead of a table"},
    "dry_run": {"action": "store_true", "help": "only tell the estimate"},
}


def parser(description: str, *names: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser of arguments that experiments have in common.

    Args:
        description: of the program; of several lines the first one.
        names: keys of ARGUMENTS, with the default that is there.
        defaults: other keys of ARGUMENTS, with the program's own default.
    """
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, of in ARGUMENTS.items():
        flag = f"--{name.replace('_', '-')}"
        if name in defaults:
            made.add_argument(flag, **of | {"default": defaults[name]})
        elif name in names:
            made.add_argument(flag, **of)
    return made


def selected(
    parser: argparse.ArgumentParser, read: argparse.Namespace, names: Iterable[str]
) -> list[str]:
    """Return the names that one of the globs of ``--only`` matches.

    Raises:
        SystemExit: none does; the parser has told it.
    """
    names, globs = list(names), read.only.split(",")
    found = [name for name in names if any(fnmatch.fnmatchcase(name, g) for g in globs)]
    if not found:
        parser.error(f"--only {read.only} names none of the rows {', '.join(names)}")
    return found
