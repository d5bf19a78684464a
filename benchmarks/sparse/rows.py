"""The runs of this experiment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import result_files

from sparse.methods import METHODS
from sparse.problem import LOSSES, MU
from sparse.text import FEATURES

__all__ = ["EPOCHS", "LIMIT_S", "OUT", "Row", "Settings", "rows"]

OUT: Final = Path(__file__).with_name("results")
LR: Final = 1.0
DECAY: Final = 0.25
"""Of the learning rate, after each pass over the examples: a back-off, as in the paper."""

EPOCHS: Final = 2
LIMIT_S: Final = 10.0
LOOKS: Final = 15


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
    def name(self) -> str:
        """For progress and messages."""
        return f"{self.row.name} {self.seed}"

    @property
    def file_name(self) -> str:
        """Name of the result's file; another one for any other setting."""
        return f"{self.row.name}-{self.seed}-{result_files.key(self.as_json())}.json"


def rows() -> Iterator[Row]:
    """Iterate over all rows, loss by loss, method by method."""
    for loss in LOSSES:
        for name, method in METHODS.items():
            for workers in method.workers:
                yield Row(loss, name, workers)
