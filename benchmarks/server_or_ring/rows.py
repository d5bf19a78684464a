"""A row of the comparison: one model, one way of training, one number of workers. Pure."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Self

import result_files

from server_or_ring.compute import BATCH, MEASURED
from server_or_ring.layers import Layer, even, layers_of
from smbox_torch.planning import models
from smbox_torch.planning.file import FLOAT32
from smbox_torch.planning.methods import METHODS, Setup
from smbox_torch.planning.rates import Prediction, Rates, predict

WORKERS = (2, 6, 4)
"""In this order: an interrupted grid has the ends first."""

PERIODIC = ("hybrid", "easgd", "easgd-striped")
NODE_GBYTES = 1.0
ITERATIONS = 3
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One row, and all that decides its figures.

    Attributes:
        model: of torchvision; or "even", equal layers.
        way: key of ``smbox_torch.planning.methods.METHODS``.
        workers: in all, each a host, but of hybrid ``per_host`` on a host.
        scale: the model and the computation are divided by it, the link is not: so the ratio
            of transfer to computation stays.
        compute_s: forward and backward pass of the whole model's batch, which a worker waits.
        batch: images of one worker's iteration.
        rate_mbit: of every host's link.
        iterations: that count, after one that does not; of ways with a period one period.
        period: of elastic exchanges.
        nodes: memory nodes of easgd-striped.
        per_host: workers on a host of hybrid.
        elements: of the model "even".
    """

    model: str
    way: str
    workers: int
    scale: float = 8.0
    compute_s: float = 0.0
    batch: int = BATCH
    rate_mbit: float = 1000.0
    iterations: int = ITERATIONS
    period: int = 10
    nodes: int = 2
    per_host: int = 2
    elements: int = 0

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what :meth:`as_json` told."""
        return cls(**json.loads(text))

    def as_json(self) -> str:
        """Return all fields as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def file_name(self) -> str:
        """Name of the file of the result; it changes with every field."""
        return f"{self.name}-{result_files.key(asdict(self), digits=10)}.json"

    @property
    def name(self) -> str:
        """Name for command lines, progress and files."""
        return f"{self.model}-{self.workers}-{self.way}"

    @property
    def timed(self) -> int:
        """Iterations that count."""
        return self.period if self.way in PERIODIC else self.iterations

    @property
    def wait_s(self) -> float:
        """Seconds that a worker waits instead of each computation."""
        return self.compute_s / self.scale

    def layers(self) -> list[Layer]:
        """Return the layers of the whole model, before it is scaled."""
        return even(self.elements) if self.model == "even" else layers_of(self.model)

    def laboratory(self, nbytes: float) -> str:
        """Return the hosts as the laboratory's file describes them.

        Args:
            nbytes: of the scaled model.
        """
        nodes = self.nodes if self.way == "easgd-striped" else 1
        each = self.per_host if self.way == "hybrid" else 1
        memory = int(8 * nbytes / MIB) + 256  # a center, three sums, rings of answers
        return "\n".join(
            [
                f"rate_mbit = {self.rate_mbit}",
                "keys = false",
                f'[[host]]\nname = "node"\ncount = {nodes}\nmemory = "{memory}MiB"',
                f'[[host]]\nname = "worker"\ncount = {self.workers // each}',
                f"workers = {each}",
            ]
        )


def grid(seconds: Mapping[str, float], scale: float = Row.scale) -> Iterator[Row]:
    """Iterate over the rows: small models first, all ways before the next number.

    Args:
        seconds: of a forward and backward pass, by model.
        scale: of all rows.
    """
    for model in MEASURED:
        for workers in WORKERS:
            for way in METHODS:
                yield Row(model, way, workers, scale=scale, compute_s=seconds[model])


@functools.cache
def parameters_of(model: str) -> int:
    """Return the number of parameters of a whole model of torchvision."""
    return models.count_parameters(model)


def predicted(row: Row, parameters: int) -> Prediction:
    """Return what the planner says of a row, of the whole model."""
    setup = Setup(
        row.workers,
        float(FLOAT32 * parameters),
        row.compute_s,
        period=row.period,
        nodes=row.nodes,
        per_host=row.per_host,
    )
    return predict(row.way, setup, Rates(row.rate_mbit, 0.0, NODE_GBYTES), batch=row.batch)
