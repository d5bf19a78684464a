"""What a run asks of each way of learning, whether it is done with torch or without."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import smbox
from sparse.problem import Batch

__all__ = ["Learner", "Place"]

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Place:
    """Where one worker of one run works.

    Attributes:
        box: the memory.
        name: of the run.
        rank: of this worker.
        workers: how many there are.
        semaphore: one for all workers, of the operating system.
    """

    box: smbox.Box
    name: str
    rank: int
    workers: int
    semaphore: AbstractContextManager[Any]


class Learner(Protocol):
    """One worker's way of stepping."""

    def step(self, batch: Batch, lr: float) -> None:
        """Do one update; the learning rate is for one example, a batch's gradients add up."""

    def end(self) -> None:
        """Share what is left; other workers may still step."""

    def weights(self) -> F32:
        """Return a copy of what the workers share, ``f32[FEATURES]``; rank 0 is asked."""

    def close(self) -> None:
        """Leave the run."""
