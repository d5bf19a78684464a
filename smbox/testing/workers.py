"""Workers of distributed training as generators, and the orders in which they take effect.

A worker yields before each operation on shared memory, so that its caller decides the order in
which workers' operations take effect. :func:`replay` follows a recorded order;
:func:`run` exhausts a single worker, which is the sequential algorithm.

Legend: x the worker's parameters ``f32[n]``, changed in place; ``gradient(x, t)`` the gradient
of worker step t at x; lr the learning rate; all arithmetic in float32, every product rounded
before it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Gradient = Callable[[F32, int], F32]
Worker = Iterator[None]
Exchange = Callable[[int], Worker]
"""What a worker does at its step t besides descending; yields before each shared operation."""
Descend = Callable[[F32, F32, float], None]
"""Steps in place: x, the gradient, lr."""


class SGD(TypedDict):
    """Arguments of plain SGD, see :func:`sgd`."""

    steps: int
    lr: float


def replay(workers: Mapping[str, Worker], order: Iterable[str]) -> None:
    """Advance workers by one operation at a time, in the given order.

    Args:
        workers: name -> generator; all must be exhausted when the order ends.
        order: names of the workers, in the order in which their operations took effect.
    """
    done = object()
    at = {name: next(worker, done) for name, worker in workers.items()}
    for name in order:
        assert at[name] is not done, f"the recorded order has too many operations of {name}"
        at[name] = next(workers[name], done)
    short = [name for name, where in at.items() if where is not done]
    assert not short, f"the recorded order lacks operations of {short}"


def run(worker: Worker) -> None:
    """Run one worker to its end: the sequential algorithm."""
    for _ in worker:
        pass


def descend(x: F32, g: F32, lr: float) -> None:
    """Step: x = x - lr g."""
    x -= np.float32(lr) * g


def nothing(_t: int) -> Worker:
    """Share nothing."""
    return iter(())


def sgd(
    x: F32,
    gradient: Gradient,
    *,
    steps: int,
    lr: float,
    before: Exchange = nothing,
    after: Exchange = nothing,
    step: Descend = descend,
) -> Worker:
    """SGD, the loop of every worker: the gradient of x, ``before``, the step, ``after``."""
    for t in range(steps):
        g = gradient(x.copy(), t)
        yield from before(t)
        step(x, g, lr)
        yield from after(t)
