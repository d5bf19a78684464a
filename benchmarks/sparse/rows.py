"""The runs of this experiment, and their results: one JSON file each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sparse.methods import METHODS
from sparse.problem import LOSSES, MU
from sparse.text import FEATURES

__all__ = ["OUT", "Result", "Row", "Settings", "load", "rows", "store"]

OUT: Final = Path(__file__).with_name("results")
LR: Final = 1.0
DECAY: Final = 0.25
"""Of the learning rate, after each pass over the examples: a back-off, as in the paper."""

EPOCHS: Final = 2
LIMIT_S: Final = 10.0
LOOKS: Final = 15

Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One run, but for its seed.

    Attributes:
        loss: a key of LOSSES.
        method: a key of METHODS.
        workers: processes.
    """

    loss: str
    method: str
    workers: int

    @property
    def name(self) -> str:
        """Its name, which ``--only`` matches."""
        return f"{self.loss}-{self.method}-{self.workers}"


@dataclass(frozen=True)
class Settings:
    """All that decides a run.

    Attributes:
        row: what is run.
        seed: of the order of examples.
        epochs: passes over the examples, of all workers together.
        limit_s: seconds after which workers stop, however far they are.
        share: of the source files that examples are taken from.
        looks: at the weights during the run, but for the first and the last.
    """

    row: Row
    seed: int = 0
    epochs: int = EPOCHS
    limit_s: float = LIMIT_S
    share: float = 1.0
    looks: int = LOOKS

    def lr(self, epoch: int) -> float:
        """Return the learning rate of a pass, the first one's number is 0."""
        return float(LR * DECAY**epoch)

    def as_json(self) -> dict[str, Any]:
        """Return everything that a run depends on, with the constants of this experiment."""
        constants = {"lr": LR, "decay": DECAY, "mu": MU, "features": FEATURES}
        return asdict(self) | constants | {"batch": METHODS[self.row.method].batch}

    @property
    def file_name(self) -> str:
        """Name of the result's file; another one for any other setting."""
        key = hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()
        return f"{self.row.name}-{self.seed}-{key[:12]}.json"


def rows() -> Iterator[Row]:
    """Iterate over all rows, loss by loss, method by method."""
    for loss in LOSSES:
        for name, method in METHODS.items():
            for workers in method.workers:
                yield Row(loss, name, workers)


def store(path: Path, result: Result) -> None:
    """Write a result; the file is whole or not there, whenever this is interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.rename(path)


def load(folder: Path, wanted: Iterable[Settings]) -> dict[Row, list[Result]]:
    """Read the results of these settings that are there, by row."""
    found: dict[Row, list[Result]] = {}
    for settings in wanted:
        path = folder / settings.file_name
        if path.exists():
            found.setdefault(settings.row, []).append(json.loads(path.read_text()))
    return found
