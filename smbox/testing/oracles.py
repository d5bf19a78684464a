"""The algorithms of distributed training on one screen each: numpy replays to compare with.

A worker is a generator: it yields before each operation on shared memory, so whoever advances
it decides the order in which workers' operations take effect. :func:`replay` follows a
recorded order; :func:`run` exhausts a single worker, which is the sequential algorithm.

Legend: x the worker's parameters ``f32[n]``, changed in place; c the center ``f32[n]``,
shared and changed in place; ``gradient(x, t)`` the gradient of worker step t at x; lr the
learning rate; all arithmetic in float32, every product rounded before it is added.

Sources: EASGD, EAMSGD, Downpour and its variants arXiv:1412.6651; SEASGD ShmCaffe (ICDCS
2018); SSP Ho et al. (NIPS 2013). Orders of steps are those of the files in smbox_torch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "adownpour",
    "downpour",
    "eamsgd",
    "easgd",
    "easgd_overlapped",
    "elastic",
    "mdownpour",
    "parameter_server",
    "replay",
    "run",
    "seasgd",
    "ssp",
    "sync_easgd",
]

F32 = NDArray[np.float32]
Gradient = Callable[[F32, int], F32]
Worker = Iterator[None]


def replay(workers: Mapping[str, Worker], order: Iterable[str]) -> None:
    """Advance workers by one operation each time the order names them.

    Args:
        workers: name -> generator; all must be exhausted when the order ends.
        order: names of the workers whose operations took effect, in that order.
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


def elastic(x: F32, c: F32, moving_rate: float) -> F32:
    """Return d = moving_rate (x - c), and add it to c."""
    d = (x - c) * np.float32(moving_rate)
    c += d
    return d


def descend(x: F32, g: F32, lr: float) -> None:
    """Step: x = x - lr g."""
    x -= np.float32(lr) * g


def easgd(
    x: F32,
    c: F32,
    gradient: Gradient,
    *,
    steps: int,
    lr: float,
    moving_rate: float,
    period: int,
) -> Worker:
    """EASGD, algorithm 1: elastic move first, then the gradient of the old x."""
    for t in range(steps):
        g = gradient(x.copy(), t)
        if t % period == 0:
            yield
            x -= elastic(x, c, moving_rate)
        descend(x, g, lr)


def easgd_overlapped(
    x: F32,
    c: F32,
    gradient: Gradient,
    *,
    steps: int,
    lr: float,
    moving_rate: float,
    period: int,
) -> Worker:
    """EASGD whose moves reach x one step late: the exchange hides behind a gradient."""
    d = np.zeros_like(x)
    for t in range(steps):
        g = gradient(x.copy(), t)
        x -= d
        d = np.zeros_like(x)
        if t % period == 0:
            yield
            d = elastic(x, c, moving_rate)
        descend(x, g, lr)
    x -= d


def sync_easgd(
    xs: list[F32],
    c: F32,
    gradient: Gradient,
    *,
    steps: int,
    lr: float,
    moving_rate: float,
    period: int,
) -> None:
    """Synchronous EASGD, equation 5: all workers read the same c; all moves add up in it."""
    for t in range(steps):
        gradients = [gradient(x.copy(), t) for x in xs]
        if t % period == 0:
            moves = [(x - c) * np.float32(moving_rate) for x in xs]
            for i, d in enumerate(moves):
                xs[i] -= d
                c += d
        for i, g in enumerate(gradients):
            descend(xs[i], g, lr)


def eamsgd(
    x: F32,
    c: F32,
    gradient: Gradient,
    *,
    steps: int,
    lr: float,
    moving_rate: float,
    period: int,
    momentum: float,
) -> Worker:
    """EAMSGD: the gradient is taken ahead of x, at x + momentum v."""
    v = np.zeros_like(x)
    for t in range(steps):
        g = gradient(x + np.float32(momentum) * v, t)
        if t % period == 0:
            yield
            x -= elastic(x, c, moving_rate)
        v = np.float32(momentum) * v - np.float32(lr) * g
        x += v


def seasgd(
    x: F32,
    c: F32,
    gradient: Gradient,
    *,
    steps: int,
    lr: float,
    moving_rate: float,
    period: int,
) -> Worker:
    """SEASGD: local step, read c, move x, add the move to c later; two operations."""
    d = None
    for t in range(steps):
        g = gradient(x.copy(), t)
        descend(x, g, lr)
        if (t + 1) % period == 0:
            yield
            read = c.copy()
            d = (x - read) * np.float32(moving_rate)
            x -= d
            yield
            c += d


def downpour(
    x: F32, c: F32, gradient: Gradient, *, steps: int, lr: float, n_push: int, n_fetch: int
) -> Worker:
    """Downpour: push what x moved since the last push; fetch c. Both at once: one operation."""
    base, gathered = x.copy(), np.zeros_like(x)
    for t in range(1, steps + 1):
        descend(x, gradient(x.copy(), t - 1), lr)
        push, fetch = t % n_push == 0, t % n_fetch == 0
        if push or fetch:
            gathered += x - base
            base = x.copy()
        if push:
            yield
            c += gathered
            gathered = np.zeros_like(x)
        if fetch:
            if not push:
                yield
            x[:] = base[:] = c


def adownpour(
    x: F32,
    c: F32,
    z: F32,
    gradient: Gradient,
    *,
    steps: int,
    lr: float,
    rate: Callable[[int], float],
    clock: list[int],
) -> Worker:
    """Downpour with an average z of c: z = (1 - a) z + a c after every push (n = 1)."""
    for t in range(steps):
        before = x.copy()
        descend(x, gradient(x.copy(), t), lr)
        yield
        c += x - before
        x[:] = c
        clock[0] += 1
        z += (c - z) * np.float32(rate(clock[0]))


def mdownpour(
    x: F32, c: F32, v: F32, gradient: Gradient, *, steps: int, lr: float, momentum: float
) -> Worker:
    """Downpour with Nesterov's momentum at the center: gradients at c + momentum v.

    v = momentum v + u is written as the elastic move of s = u / (1 - momentum); the worker
    takes v from s and the move.
    """
    rate, momentum_ = np.float32(1.0 - momentum), np.float32(momentum)
    for t in range(steps):
        before = x.copy()
        descend(x, gradient(x.copy(), t), lr)
        s = (x - before) / rate
        yield
        d = elastic(s, v, float(rate))
        mine = (s - d / rate) + d
        yield
        c += mine
        x[:] = c + momentum_ * mine


def ssp(
    x: F32, c: F32, gradient: Gradient, *, steps: int, lr: float, fetches: Container[int]
) -> Worker:
    """SSP with a clock per step: add what x moved; read the sum after the steps ``fetches``."""
    base = x.copy()
    for t in range(steps):
        descend(x, gradient(x.copy(), t), lr)
        yield
        c += x - base
        base = x.copy()
        if t in fetches:
            yield
            x[:] = base[:] = c


def parameter_server(x: F32, gradients: list[Gradient], *, steps: int, lr: float) -> None:
    """Synchronous parameter server: one gradient function per worker; x is common to all."""
    share = np.float32(1.0 / len(gradients))
    for t in range(steps):
        total = np.zeros_like(x)
        for gradient in gradients:
            total += gradient(x.copy(), t) * share
        descend(x, total, lr)
