"""What is compared: the ways in which processes of one host step on one sparse linear model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from sparse.bare import Rows, Stores, stores_under_semaphore
from sparse.learner import Learner, Place
from sparse.problem import Problem
from sparse.wrapped import (
    ByDogwild,
    ByHogwild,
    ByHogwildPP,
    Plain,
    under_box_lock,
    under_semaphore,
)

__all__ = ["METHODS", "Method"]


class Build(Protocol):
    """Makes one worker's learner."""

    def __call__(self, problem: Problem, place: Place) -> Learner:
        """Make it; all workers of a run do so at once."""


@dataclass(frozen=True)
class Method:
    """A method and how it is run.

    Attributes:
        title: of its lines in tables.
        build: of a worker.
        workers: numbers of processes.
        batch: examples of an update.
    """

    title: str
    build: Build
    workers: tuple[int, ...] = (1, 2, 4)
    batch: int = 8


METHODS: Final = {
    "plain": Method("`torch.optim.SGD`, no smbox", Plain, workers=(1,)),
    "hogwild": Method("`Hogwild`", ByHogwild),
    "hogwild_pp": Method("`HogwildPP`, 2 clusters", ByHogwildPP, workers=(2, 4)),
    "dogwild": Method("`Dogwild`", ByDogwild),
    "semaphore": Method("`Hogwild`, step under a semaphore", under_semaphore),
    "lock": Method("`Hogwild`, step under `box.lock`", under_box_lock),
    "stores": Method("numpy, stores to `region.local()`", Stores, batch=1),
    "stores_semaphore": Method(
        "numpy, stores under a semaphore", stores_under_semaphore, batch=1
    ),
    "rows": Method("numpy, `region.rows()` under stripe locks", Rows, batch=1),
}
