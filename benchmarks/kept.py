"""Results of runs: one JSON file each, found again by the settings that its name stands for."""

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
        """For people: in progress and messages."""

    @property
    def file_name(self) -> str:
        """Of the result's file; another one for other settings."""


R = TypeVar("R", bound=Run)
K = TypeVar("K", bound=Hashable)


def key(settings: Any, digits: int = 12) -> str:
    """Return hex digits that change with every value of JSON-ready settings (SHA-256)."""
    told = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:digits]


def store(path: Path, result: Result) -> None:
    """Write a result; the file is complete or not there, whenever this is interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.rename(path)


def load(folder: Path, runs: Iterable[R]) -> Iterator[tuple[R, Result]]:
    """Yield the runs whose results are in the folder, and these; other files do not count."""
    for run in runs:
        path = folder / run.file_name
        if path.exists():
            yield run, json.loads(path.read_text())


def grouped(folder: Path, runs: Iterable[R], by: Callable[[R], K]) -> dict[K, list[Result]]:
    """Read the results of the runs that are there, by a property; in the order of the runs."""
    found: dict[K, list[Result]] = {}
    for run, result in load(folder, runs):
        found.setdefault(by(run), []).append(result)
    return found


def missing(folder: Path, runs: Iterable[R]) -> list[R]:
    """Return the runs without a result in the folder."""
    return [run for run in runs if not (folder / run.file_name).exists()]
