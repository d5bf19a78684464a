"""A small test problem: a point that descends noisy quadratics.

Worker i's loss at its step t is ``0.5 |x - noise(i, t)|^2``, so its gradient is
``x - noise(i, t)``, exactly. ``LR`` and ``HALF`` are powers of two: a fused multiply-add then
rounds like a product and a sum, and a framework's step equals numpy's to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["HALF", "LR", "SIZE", "Descent", "gradient", "group_gradient", "noise", "start"]

F32 = NDArray[np.float32]

SIZE: Final = 7
LR: Final = 2.0**-4
HALF: Final = 0.5


def start() -> F32:
    """Return where all workers begin: ``f32[SIZE]``."""
    return np.random.default_rng(99).standard_normal(SIZE).astype(np.float32)


def noise(worker: int, t: int) -> F32:
    """Return the goal of a worker's step: ``f32[SIZE]``."""
    return np.random.default_rng((worker, t)).standard_normal(SIZE).astype(np.float32)


def gradient(worker: int) -> Callable[[F32, int], F32]:
    """Return the gradient of a worker as the oracles take it."""
    return lambda x, t: x - noise(worker, t)


def group_gradient(group: int, ranks: int) -> Callable[[F32, int], F32]:
    """Return the mean gradient of a group of workers, added in the order of ranks."""

    def mean(x: F32, t: int) -> F32:
        total = gradient(group * ranks)(x, t)
        for rank in range(1, ranks):
            total = total + gradient(group * ranks + rank)(x, t)
        return total / np.float32(ranks)

    return mean


class Descent:
    """A worker: a tensor of a framework with torch's methods, and its optimizer.

    Args:
        worker: number of the worker.
        x: the parameter, ``f32[SIZE]``.
        optimizer: with ``zero_grad`` and ``step``.
        t: number of steps done before.
    """

    def __init__(self, worker: int, x: Any, optimizer: Any, t: int = 0) -> None:
        self.worker = worker
        self.x = x
        self.optimizer = optimizer
        self.t = t

    def run(self, steps: int = 1) -> None:
        """Do ``steps`` steps."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            goal = self.x.new_tensor(noise(self.worker, self.t))
            (0.5 * (self.x - goal) ** 2).sum().backward()
            self.optimizer.step()
            self.t += 1

    def values(self) -> F32:
        """Return a copy of x."""
        copy: F32 = self.x.detach().numpy().copy()
        return copy
