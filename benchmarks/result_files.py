"""Result files: one JSON file for each run, whose name contains a hash of the settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

Result = dict[str, Any]


class Run(Protocol):
    """Settings of one run."""

    @property
    def name(self) -> str:
        """Name for progress bars and messages."""

    @property
    def file_name(self) -> str:
        """Name of the result file, which differs for different settings."""


R = TypeVar("R", bound=Run)
K = TypeVar("K", bound=Hashable)


def key(settings: Any, digits: int = 12) -> str:
    """Return the first hex digits of the SHA-256 hash of settings encoded as JSON."""
    told = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:digits]


def store(path: Path, result: Result) -> None:
    """Write a result atomically: after an interruption the file is complete or missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.rename(path)


def load(folder: Path, runs: Iterable[R]) -> Iterator[tuple[R, Result]]:
    """Yield each run that has a result file, with its result; ignore other files."""
    for run in runs:
        path = folder / run.file_name
        if path.exists():
            yield run, json.loads(path.read_text())


def grouped(folder: Path, runs: Iterable[R], by: Callable[[R], K]) -> dict[K, list[Result]]:
    """Return the results of runs grouped by a property, in the order of the runs."""
    found: dict[K, list[Result]] = {}
    for run, result in load(folder, runs):
        found.setdefault(by(run), []).append(result)
    return found


def missing(folder: Path, runs: Iterable[R]) -> list[R]:
    """Return the runs without a result in the folder."""
    return [run for run in runs if not (folder / run.file_name).exists()]
