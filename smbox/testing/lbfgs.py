"""L-BFGS in plain numpy: the oracle of ``smbox_torch.Sandblaster``.

Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 7.5, with the rules that
clients/smbox_torch/sandblaster/sandblaster.py states: Armijo backtracking from 1, at first from
1 / |g|.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["lbfgs"]

Vector = NDArray[Any]
Evaluate = Callable[[Vector], tuple[float, Vector]]


def lbfgs(x: Vector, evaluate: Evaluate, history: int) -> Iterator[tuple[Vector, float, float]]:
    """Yield x, its loss and the size of the step (0.0: none was found) of each iteration.

    Args:
        x: ``[n]``, the start; not modified.
        evaluate: returns loss and gradient at x.
        history: number of pairs to keep.
    """
    pairs: list[tuple[Vector, Vector]] = []
    loss, g = evaluate(x)
    while True:
        d = _direction(g, pairs)
        slope = _dot(g, d)
        if pairs and not slope > 0:
            pairs, d, slope = [], g, _dot(g, g)
        step = 1.0 if pairs else min(1.0, slope**-0.5) if slope > 0 else 0.0
        for _ in range(20 if step else 0):
            trial = x + x.dtype.type(-step) * d
            found, gradient = evaluate(trial)
            if found <= loss - 1e-4 * step * slope:
                break
            step /= 2
        else:
            pairs = []
            yield x, loss, 0.0
            continue
        s, y = x.dtype.type(-step) * d, gradient - g
        if _dot(s, y) > np.finfo(x.dtype).eps * step * slope:
            pairs = [*pairs, (s, y)][-history:]
        x, loss, g = trial, found, gradient
        yield x, loss, step


def _direction(g: Vector, pairs: list[tuple[Vector, Vector]]) -> Vector:
    d, alphas, kind = g.copy(), [], g.dtype.type
    for s, y in reversed(pairs):
        alphas.append(_dot(s, d) / _dot(s, y))
        d = d - kind(alphas[-1]) * y
    if pairs:
        s, y = pairs[-1]
        d = kind(_dot(s, y) / _dot(y, y)) * d
    for s, y in pairs:
        d = d + kind(alphas.pop() - _dot(y, d) / _dot(s, y)) * s
    return d


def _dot(a: Vector, b: Vector) -> float:
    return float(a.astype(np.float64) @ b.astype(np.float64))
