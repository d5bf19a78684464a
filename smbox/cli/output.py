"""Output of the commands: tables, JSON and one-line error messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from smbox.errors import (
    ConfigError,
    RegionNotFoundError,
    RequestTimeoutError,
    SmboxError,
    TransportError,
)

EXIT_CODES: tuple[tuple[type[SmboxError], int], ...] = (
    (ConfigError, 2),
    (TransportError, 3),
    (RequestTimeoutError, 4),
    (RegionNotFoundError, 5),
    (SmboxError, 1),
)
"""Exit code of each error class; the first match counts. docs/cli.md lists them."""

WIDTH_MAX: Final = 1 << 16
"""Columns of a table in a file or pipe; the table itself is as wide as its cells."""


def exit_code(error: SmboxError) -> int:
    """Return the exit code for an error."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def print_error(message: str) -> None:
    """Print an error message of one line to stderr, or nowhere if the caller closed that."""
    if sys.stderr is not None:  # print would take stdout instead of None
        print(f"smbox: {message}", file=sys.stderr)


def print_json(value: object) -> None:
    """Print a value as indented JSON; objects of other types are printed as strings."""
    print(json.dumps(value, indent=2, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their column names; columns of numbers are right-aligned.

    Only a terminal cuts long cells. Cells are no markup: a name may contain brackets.
    """
    if sys.stdout is None:  # closed by the caller
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        is_number = all(isinstance(row[index], int | float) for row in rows)
        table.add_column(
            column, justify="right" if rows and is_number else "left", no_wrap=True
        )
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    width = None if sys.stdout.isatty() else WIDTH_MAX
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print one name and its value per line, aligned."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def human_nbytes(nbytes: int) -> str:
    """Return a size in the largest binary unit in which it is at least 1."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
