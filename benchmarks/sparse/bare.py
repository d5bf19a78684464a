"""Learning without torch: five numpy calls a step, on mapped memory or by verbs of a region.

The stores are a larger share of a step than with torch, so that processes meet more often.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse.learner import Learner, Place
from sparse.problem import Batch, Problem, no_weights
from sparse.text import FEATURES

__all__ = ["Rows", "Stores", "stores_under_semaphore"]

F32 = NDArray[np.float32]


class Stores:
    """Plain stores to a region that all workers map, ``consistency="none"``.

    Args:
        problem: the objective.
        place: of this worker.
        lock: held during each store.
    """

    def __init__(
        self, problem: Problem, place: Place, lock: AbstractContextManager[Any] | None = None
    ) -> None:
        self._problem = problem
        self._lock = nullcontext() if lock is None else lock
        region = place.box.create(
            place.name, FEATURES, "float32", no_weights(), exist_ok=True, consistency="none"
        )
        self._memory: F32 = region.local()

    def step(self, batch: Batch, lr: float) -> None:
        """Add the move of one example to the memory."""
        features = batch.features
        move = self._problem.move(self._memory[features], batch)
        move *= lr
        with self._lock:
            self._memory[features] += move

    def end(self) -> None:
        """Return: every step is in the memory."""

    def weights(self) -> F32:
        """Copy the memory."""
        return self._memory.copy()

    def close(self) -> None:
        """Return: nobody was joined."""


class Rows:
    """Verbs on rows of a region: exact, journaled changes under the region's stripe locks."""

    def __init__(self, problem: Problem, place: Place) -> None:
        self._problem = problem
        self._region = place.box.create(
            place.name, FEATURES, "float32", no_weights(), exist_ok=True
        )

    def step(self, batch: Batch, lr: float) -> None:
        """Get the weights of one example and accumulate its move."""
        rows = self._region.rows(batch.features)
        rows.accumulate(self._problem.move(rows.get(), batch), scale=lr)

    def end(self) -> None:
        """Return: every step is in the memory."""

    def weights(self) -> F32:
        """Copy the region."""
        weights: F32 = self._region.get()
        return weights

    def close(self) -> None:
        """Return: nobody was joined."""


def stores_under_semaphore(problem: Problem, place: Place) -> Learner:
    """Return stores that exclude each other by a semaphore of the operating system."""
    return Stores(problem, place, place.semaphore)
