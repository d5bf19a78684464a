"""The rows of the study: two networks, each trained in six ways on batches of the same size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

CORES = 4
"""Threads and processes of the widest rows."""

TITLES = {"alexnet": "AlexNet", "vgg16": "VGG16"}
BATCH = {"alexnet": 64, "vgg16": 8}
"""Pictures of a batch, over all processes; AlexNet's set is the larger one."""

BATCHES = {"alexnet": 6, "vgg16": 3}
"""Batches of a row; the first one is not timed."""

CUT = {"alexnet": 8, "vgg16": 17}
"""First layer of the second stage. Each stage has near half of AlexNet's multiplications; the
first one more of VGG16's, because the optimizer's step is nearly all in the second one.
"""


@dataclass(frozen=True)
class Row:
    """One way to train one network.

    Attributes:
        name: of the row. model: a name of torchvision's. title: for the table.
        kind: one process, several with a common mean of gradients, or a pipeline.
        processes: how many. threads: of each. batch: pictures in all. batches: with the first.
    """

    name: str
    model: str
    title: str
    kind: Literal["one", "processes", "pipeline"]
    processes: int
    threads: int
    batch: int
    batches: int
    micro_batches: int = 4

    @property
    def file_name(self) -> str:
        """Name of the result's file."""
        return f"{self.name}.json"

    @property
    def pictures(self) -> int:
        """How many pictures the row trains with."""
        return self.batch * self.batches

    @property
    def timed(self) -> int:
        """How many of them are timed."""
        return self.batch * (self.batches - 1)

    @property
    def cut(self) -> int:
        """First layer of the second stage."""
        return CUT[self.model]

    def sized(self, batch: int, batches: int) -> Row:
        """Return the row with another number of pictures."""
        return replace(self, batch=batch, batches=batches)


def _rows(model: str) -> list[Row]:
    def row(name: str, title: str, kind: str, processes: int, threads: int) -> Row:
        return Row(
            f"{model}-{name}",
            model,
            title,
            kind,  # type: ignore[arg-type]
            processes,
            threads,
            BATCH[model],
            BATCHES[model],
        )

    return [
        row("sequential", "one process, 1 thread", "one", 1, 1),
        row("threads", f"one process, {CORES} threads", "one", 1, CORES),
        row("processes-2", "SyncGroup, 2 processes of 1 thread", "processes", 2, 1),
        row("processes-4", "SyncGroup, 4 processes of 1 thread", "processes", 4, 1),
        row("pipeline-2x1", "Pipeline, 2 stages of 1 thread", "pipeline", 2, 1),
        row("pipeline-2x2", "Pipeline, 2 stages of 2 threads", "pipeline", 2, 2),
    ]


ROWS = {row.name: row for model in TITLES for row in _rows(model)}
