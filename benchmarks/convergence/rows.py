"""A row of the comparison: one algorithm with all settings that decide its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import result_files

Scenario = Literal["none", "slow", "killed", "joining"]

SHOWN_ONLY = ("title", "table")
"""Fields that change how a row is shown, not what it measures."""

EPOCHS = 6.0
SHARE = 1.0
LOOKS = 20


@dataclass(frozen=True)
class Row:
    """One algorithm with one setting.

    Attributes:
        name: short, of files and command lines.
        title: for tables.
        table: the table of the report that shows it.
        kind: key of ``trainers.KINDS``.
        lr: highest learning rate.
        workers: in all.
        nodes: that the workers are spread over; more than one means tcp.
        batch: pictures of one worker's step.
        momentum: of the ``torch.optim.SGD`` inside; an algorithm's own is among ``options``.
        part: of the samples of the other rows, where fewer are enough.
        network: key of ``task.NETWORKS``.
        scenario: what happens to the last worker, see ``parts``.
        options: arguments of the optimizer wrapper; what is not named has its default, and
            ``{rank}`` in a text is the worker's rank.
        version: of the algorithm. Raise it when the algorithm has changed: the results of
            older versions do not count then, and the row is run again.
    """

    name: str
    title: str
    table: str
    kind: str
    lr: float
    workers: int = 4
    nodes: int = 1
    batch: int = 8
    momentum: float = 0.9
    part: float = 1.0
    network: str = "convolutions"
    scenario: Scenario = "none"
    options: dict[str, Any] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True)
class Settings:
    """What all workers of a run agree on.

    Attributes:
        row: what is run.
        seed: of network, order of the pictures and all else.
        epochs: how often the workers together see every training picture, of a row of part 1.
        share: of the training pictures.
        looks: points of the curve of accuracy.
        judged_on: "test" for final runs, "validation" for tuning, which never opens the test
            set.
        judged_pictures: judged in the end; None: all of the set.
    """

    row: Row
    seed: int
    epochs: float = EPOCHS
    share: float = SHARE
    looks: int = LOOKS
    judged_on: Literal["test", "validation"] = "test"
    judged_pictures: int | None = None

    @classmethod
    def from_json(cls, read: dict[str, Any]) -> Self:
        """Return what :meth:`as_json` told."""
        return cls(**read | {"row": Row(**read["row"])})

    def as_json(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return asdict(self)

    @property
    def key(self) -> str:
        """12 hex digits that change with every field that can change the result."""
        told = self.as_json()
        for name in SHOWN_ONLY:
            del told["row"][name]
        return result_files.key(told)

    @property
    def name(self) -> str:
        """For progress and messages."""
        return f"{self.row.name} {self.seed}"

    @property
    def file_name(self) -> str:
        """Name of the file of the result."""
        return f"{self.row.name}-{self.seed}-{self.key}.json"

    def samples(self, pictures: int) -> int:
        """Return how many pictures all workers together train on."""
        return max(1, round(self.epochs * self.row.part * pictures))
