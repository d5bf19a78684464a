"""Results of rows, one file each, found again by all that decides the row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from server_or_ring.rows import Row

Result = dict[str, Any]
"""As ``running.figures`` returns it, and ``took_s``: what the row took to run."""


def store(folder: Path, row: Row, result: Result) -> None:
    """Write a result; the file is complete or not there, whenever this is interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / row.file_name
    beside = path.with_suffix(f".{os.getpid()}.part")
    beside.write_text(json.dumps(result) + "\n")
    beside.rename(path)


def load(folder: Path, rows: Iterable[Row]) -> dict[Row, Result]:
    """Read the results of these rows that are there."""
    found = {}
    for row in rows:
        path = folder / row.file_name
        if path.exists():
            found[row] = json.loads(path.read_text())
    return found
