"""Distributed training algorithms in numpy, one short function each, to compare with.

The loop is that of :mod:`smbox.testing.workers`; an oracle is what its algorithm adds to it.

Legend: x the worker's parameters ``f32[n]``, changed in place; c the center ``f32[n]``,
shared and changed in place; ``gradient(x, t)`` the gradient of worker step t at x; lr the
learning rate; all arithmetic in float32, every product rounded before it is added.

Sources: EASGD, EAMSGD, Downpour and its variants arXiv:1412.6651; SEASGD ShmCaffe (ICDCS
2018); SSP Ho et al. (NIPS 2013). Orders of steps are those of the files in smbox_torch.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Unpack

import numpy as np

from smbox.testing.workers import (
    F32,
    SGD,
    Descend,
    Gradient,
    Worker,
    descend,
    replay,
    run,
    sgd,
)

__all__ = [
    "adownpour",
    "downpour",
    "eamsgd",
    "easgd",
    "elastic",
    "mdownpour",
    "parameter_server",
    "replay",
    "run",
    "seasgd",
    "sgd",
    "shared",
    "ssp",
    "sync_easgd",
]


def elastic(x: F32, c: F32, moving_rate: float) -> F32:
    """Return d = moving_rate (x - c), and add it to c."""
    d = (x - c) * np.float32(moving_rate)
    c += d
    return d


def easgd(
    x: F32,
    c: F32,
    gradient: Gradient,
    *,
    moving_rate: float,
    period: int,
    step: Descend = descend,
    **by: Unpack[SGD],
) -> Worker:
    """EASGD, algorithm 1: elastic move first, then the gradient of the old x."""

    def exchange(t: int) -> Worker:
        if t % period == 0:
            yield
            x[:] -= elastic(x, c, moving_rate)

    return sgd(x, gradient, before=exchange, step=step, **by)


def shared(worker: Worker, x: F32, c: F32, *, moving_rate: float) -> Worker:
    """A worker of EASGD with a last exchange at its end, for an incomplete period."""
    yield from worker
    yield
    x -= elastic(x, c, moving_rate)


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
    moving_rate: float,
    period: int,
    momentum: float,
    **by: Unpack[SGD],
) -> Worker:
    """EAMSGD: the gradient is taken ahead of x, at x + momentum v."""
    v, momentum_ = np.zeros_like(x), np.float32(momentum)

    def ahead(x: F32, t: int) -> F32:
        return gradient(x + momentum_ * v, t)

    def nesterov(x: F32, g: F32, lr: float) -> None:
        v[:] = momentum_ * v - np.float32(lr) * g
        x += v

    return easgd(x, c, ahead, moving_rate=moving_rate, period=period, step=nesterov, **by)


def seasgd(
    x: F32, c: F32, gradient: Gradient, *, moving_rate: float, period: int, **by: Unpack[SGD]
) -> Worker:
    """SEASGD: local step, read c, move x, add the move to c later; two operations."""

    def exchange(t: int) -> Worker:
        if (t + 1) % period == 0:
            yield
            d = (x - c) * np.float32(moving_rate)
            x[:] -= d
            yield
            c[:] += d

    return sgd(x, gradient, after=exchange, **by)


def downpour(
    x: F32, c: F32, gradient: Gradient, *, n_push: int, n_fetch: int, **by: Unpack[SGD]
) -> Worker:
    """Downpour: push what x moved since the last push; fetch c. Both at once: one operation."""
    base, gathered = x.copy(), np.zeros_like(x)

    def exchange(t: int) -> Worker:
        push, fetch = (t + 1) % n_push == 0, (t + 1) % n_fetch == 0
        if push or fetch:
            gathered[:] += x - base
            base[:] = x
            yield
        if push:
            c[:] += gathered
            gathered[:] = 0
        if fetch:
            x[:] = base[:] = c

    return sgd(x, gradient, after=exchange, **by)


def server_downpour(
    x: F32,
    c: F32,
    gradient: Gradient,
    *,
    server: Callable[[F32, F32], None],
    n_push: int,
    n_fetch: int,
    **by: Unpack[SGD],
) -> Worker:
    """Downpour of gradients: ``server`` steps c along their sum; fetch c."""
    gathered = np.zeros_like(x)

    def gathering(x: F32, t: int) -> F32:
        g = gradient(x, t)
        gathered[:] += g
        return g

    def exchange(t: int) -> Worker:
        if (t + 1) % n_push == 0:
            yield
            server(c, gathered)
            gathered[:] = 0
        if (t + 1) % n_fetch == 0:
            yield
            x[:] = c

    return sgd(x, gathering, after=exchange, **by)


def adownpour(
    x: F32,
    c: F32,
    z: F32,
    gradient: Gradient,
    *,
    rate: Callable[[int], float],
    clock: list[int],
    **by: Unpack[SGD],
) -> Worker:
    """Downpour with an average z of c: z = (1 - a) z + a c after every push (n = 1)."""
    base = x.copy()

    def exchange(_t: int) -> Worker:
        yield
        c[:] += x - base
        x[:] = base[:] = c
        clock[0] += 1
        z[:] += (c - z) * np.float32(rate(clock[0]))

    return sgd(x, gradient, after=exchange, **by)


def mdownpour(
    x: F32, c: F32, v: F32, gradient: Gradient, *, momentum: float, **by: Unpack[SGD]
) -> Worker:
    """Downpour with Nesterov's momentum at the center: gradients at c + momentum v.

    v = momentum v + u is written as the elastic move of s = u / (1 - momentum); the worker
    takes v from s and the move.
    """
    rate, momentum_ = np.float32(1.0 - momentum), np.float32(momentum)
    base = x.copy()

    def exchange(_t: int) -> Worker:
        s = (x - base) / rate
        yield
        d = elastic(s, v, float(rate))
        mine = (s - d / rate) + d
        yield
        c[:] += mine
        x[:] = base[:] = c + momentum_ * mine

    return sgd(x, gradient, after=exchange, **by)


def ssp(
    x: F32, c: F32, gradient: Gradient, *, fetches: Container[int], **by: Unpack[SGD]
) -> Worker:
    """SSP with a clock per step: add what x moved; read the sum after the steps ``fetches``."""
    base = x.copy()

    def exchange(t: int) -> Worker:
        yield
        c[:] += x - base
        base[:] = x
        if t in fetches:
            yield
            x[:] = base[:] = c

    return sgd(x, gradient, after=exchange, **by)


def parameter_server(x: F32, gradients: list[Gradient], *, steps: int, lr: float) -> None:
    """Synchronous parameter server: one gradient function per worker; x is common to all."""
    share = np.float32(1.0 / len(gradients))
    for t in range(steps):
        total = np.zeros_like(x)
        for gradient in gradients:
            total += gradient(x.copy(), t) * share
        descend(x, total, lr)
