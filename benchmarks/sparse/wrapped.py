"""Learning with torch and the classes of smbox_torch, as their users write it.

A step is an embedding lookup, autograd and the step of ``torch.optim.SGD``.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from smbox_torch import Dogwild, Hogwild, HogwildPP
from smbox_torch.world import World
from sparse.learner import Learner, Place
from sparse.problem import Batch, Problem
from sparse.text import FEATURES

__all__ = [
    "ByDogwild",
    "ByHogwild",
    "ByHogwildPP",
    "Plain",
    "under_box_lock",
    "under_semaphore",
]

F32 = NDArray[np.float32]
CLUSTERS: Final = 2
PAUSE_S: Final = 1e-3


class Plain:
    """``torch.optim.SGD`` on this process's own model.

    Args:
        problem: the objective.
        place: of this worker.
        lock: held during each step of the optimizer.
    """

    def __init__(
        self, problem: Problem, place: Place, lock: AbstractContextManager[Any] | None = None
    ) -> None:
        self._problem = problem
        self._lock = nullcontext() if lock is None else lock
        self.table = nn.Embedding(FEATURES, 1, sparse=True)
        nn.init.zeros_(self.table.weight)
        self._sgd = torch.optim.SGD(self.table.parameters())
        self.optimizer: Any = self._wrapped(place)

    def _wrapped(self, place: Place) -> Any:  # noqa: ARG002 - a subclass needs it
        return self._sgd

    def step(self, batch: Batch, lr: float) -> None:
        """Step along the batch's gradient, which autograd computes."""
        self._sgd.param_groups[0]["lr"] = lr
        self.optimizer.zero_grad()
        weight = self.table(torch.from_numpy(batch.features)).squeeze(-1)
        self._problem.of_batch(weight, batch).backward()  # type: ignore[no-untyped-call]
        with self._lock:
            self.optimizer.step()

    def end(self) -> None:
        """Return: every step is where it belongs."""

    def weights(self) -> F32:
        """Copy the model."""
        return self.table.weight.detach().numpy().reshape(-1).copy()

    def close(self) -> None:
        """Return: nobody was joined."""


class ByHogwild(Plain):
    """``Hogwild``: one model for all."""

    def _wrapped(self, place: Place) -> Any:
        return Hogwild(self._sgd, place.box, place.name)

    def close(self) -> None:
        """Leave the others."""
        self.optimizer.close()


class ByHogwildPP(ByHogwild):
    """``HogwildPP``: a model for each of two clusters, and a token."""

    def _wrapped(self, place: Place) -> Any:
        world = World(
            place.rank,
            place.rank,
            world_size=place.workers,
            local_world_size=place.workers,
        )
        return HogwildPP(self._sgd, place.box, place.name, clusters=CLUSTERS, world=world)

    def weights(self) -> F32:
        """Copy the model of the cluster that has the token."""
        copy = nn.Embedding(FEATURES, 1)
        self.optimizer.center_into(copy)
        return copy.weight.detach().numpy().reshape(-1)


class ByDogwild(Plain):
    """``Dogwild``: rank 0 steps with everybody's gradients, and learns from its own share too.

    The learning rate is divided by the number of workers, as the class's page advises.
    """

    def _wrapped(self, place: Place) -> Any:
        self._others = place.workers - 1
        self._closed = place.box.counter(f"{place.name}.closed")
        return Dogwild(
            self._sgd,
            place.box,
            place.name,
            is_master=place.rank == 0,
            workers=place.workers,
        )

    def step(self, batch: Batch, lr: float) -> None:
        """Step as the others do, with a share of the learning rate."""
        super().step(batch, lr / (1 + self._others))

    def end(self) -> None:
        """Stream the last gradients; the master steps until it has had all of them."""
        if not self.optimizer.is_master:
            self.optimizer.close()
            self._closed.add(1)
            return
        while self._closed.value < self._others:
            self._step_alone()
        # The second turn from now began after the last gradient had arrived.
        turns = self.optimizer.stats().exchanges + 2
        while self.optimizer.stats().exchanges < turns:
            self._step_alone()
        self._step_alone()

    def _step_alone(self) -> None:
        self.optimizer.zero_grad()
        self.optimizer.step()
        time.sleep(PAUSE_S)

    def close(self) -> None:
        """Leave the others."""
        self.optimizer.close()


def under_semaphore(problem: Problem, place: Place) -> Learner:
    """Return Hogwild whose steps exclude each other by a semaphore of the operating system."""
    return ByHogwild(problem, place, place.semaphore)


def under_box_lock(problem: Problem, place: Place) -> Learner:
    """Return Hogwild whose steps exclude each other by ``box.lock``."""
    return ByHogwild(problem, place, place.box.lock(f"{place.name}.step", timeout_s=60.0))
