"""NodeLBFGS: the vectors of L-BFGS as regions; only commands are sent, no elements.

Two-loop recursion of Nocedal and Wright, Numerical Optimization, algorithm 7.4, as the
coordinator of Sandblaster L-BFGS runs it (Dean et al., NIPS 2012, section 4.2). n = number of
parameters, m = pairs kept:

    x     parameters           base    x before the step
    g     gradient at x        last    gradient at base
    d     H g, the direction   s, y    differences of x and of g: m regions each
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

from smbox.errors import ConfigError
from smbox_torch.checks import whole
from smbox_torch.sandblaster.run_regions import RunRegions

__all__ = ["NodeLBFGS"]

VECTORS: Final = ("x", "gradient", "base", "last", "direction")


class Pair(NamedTuple):
    """The vectors of one of the last steps.

    Attributes:
        s: region ``[n]``, the change of x.
        y: region ``[n]``, the change of the gradient.
        rho: 1 / s.y
        gamma: s.y / y.y, the scale of the first H.
    """

    s: Any
    y: Any
    rho: float
    gamma: float


class NodeLBFGS:
    """The vectors of one minimisation and their arithmetic; does not evaluate the objective.

    Args:
        box: connection to the memory; the regions are ``name.x``, ``name.gradient``,
            ``name.s0`` and so on, 2 m + 5 vectors in all.
        name: name of the run.
        size: n.
        dtype: "float32" or "float64".
        history: m.

    Attributes:
        x: region ``[n]``; the evaluating processes read it.
        gradient: region ``[n]``; the evaluating processes leave the gradient at x in it.
        pairs: the stored pairs, the oldest first.

    Raises:
        ConfigError, TypeError: another dtype, or m is not an integer of at least 1; no
            region was created.
        RegionExistsError, OutOfMemoryError: the name is in use, or memory is short; no
            region is left.
    """

    def __init__(self, box: Any, name: str, size: int, dtype: str, history: int = 10) -> None:
        if dtype not in {"float32", "float64"}:
            raise ConfigError("L-BFGS computes in float32 or float64", dtype=dtype)
        history = whole("history", history)
        pairs = [f"{kind}{index}" for index in range(history) for kind in "sy"]
        self._regions = RunRegions(box, name)
        with self._regions.free_on_error():
            regions = {
                word: self._regions.create(word, shape=(size,), dtype=dtype, layout="striped")
                for word in (*VECTORS, *pairs)
            }
        self.x, self.gradient, self._base, self._last, self._direction = (
            regions[word] for word in VECTORS
        )
        self._of_pairs = [
            (regions[f"s{index}"], regions[f"y{index}"]) for index in range(history)
        ]
        limits = np.finfo(dtype)
        self._eps, self._min, self._max = map(float, (limits.eps, limits.tiny, limits.max))
        self._slope = 0.0
        self.pairs: deque[Pair] = deque()

    def direct(self) -> float:
        """Compute ``d = H g``; return ``g . d``: if it is positive, f falls along -d.

        Without pairs H is the identity. The result is not finite if the gradient is not, or if
        its square or H g is out of the range of the dtype.
        """
        d, alphas = self._direction, []
        d.accumulate_from(self.gradient, op="replace")
        for pair in reversed(self.pairs):
            alpha = pair.rho * pair.s.dot(d)
            if not self._can_take(alpha):
                return math.nan
            alphas.append(alpha)
            d.accumulate_from(pair.y, -alpha)
        if self.pairs:
            d.scale(self.pairs[-1].gamma)
        for pair in self.pairs:
            factor = alphas.pop() - pair.rho * pair.y.dot(d)
            if not self._can_take(factor):
                return math.nan
            d.accumulate_from(pair.s, factor)
        self._slope = float(self.gradient.dot(d))
        return self._slope

    def _can_take(self, factor: float) -> bool:
        """Return whether a region may be multiplied by this factor; False for NaN."""
        return abs(factor) <= self._max

    def begin(self) -> None:
        """Save x and its gradient as the base of the next moves."""
        self._base.accumulate_from(self.x, op="replace")
        self._last.accumulate_from(self.gradient, op="replace")

    def move(self, step: float) -> None:
        """Set ``x = base - step * d``."""
        self.x.accumulate_from(self._base, op="replace")
        self.x.accumulate_from(self._direction, -step)

    def learn(self, step: float) -> bool:
        """Store the pair of the last move, whose gradient is computed; return True if stored.

        If m pairs are stored, the oldest is dropped. A pair is not stored unless s.y is above
        the rounding error of step g.d (as in Byrd, Lu, Nocedal and Zhu's L-BFGS-B, for any
        scale of f), nor if 1 / s.y or s.y / y.y is out of the range of the dtype.
        """
        if len(self.pairs) == len(self._of_pairs):
            self.pairs.popleft()
        used = [pair.s for pair in self.pairs]
        s, y = next(each for each in self._of_pairs if each[0] not in used)
        s.accumulate_from(self._direction, op="replace")
        s.scale(-step)
        y.accumulate_from(self.gradient, op="replace")
        y.accumulate_from(self._last, -1.0)
        curvature, square = s.dot(y), y.dot(y)
        least = self._eps * step * self._slope
        if not max(0.0, least) < curvature < math.inf or square == 0.0:
            return False  # for small gradients, y.y underflows before s.y
        pair = Pair(s, y, 1.0 / curvature, curvature / square)
        if pair.rho == math.inf or not self._min <= pair.gamma <= self._max:
            return False
        self.pairs.append(pair)
        return True

    def undo(self) -> None:
        """Restore x and the gradient that ``begin`` saved, and drop all pairs."""
        self.x.accumulate_from(self._base, op="replace")
        self.gradient.accumulate_from(self._last, op="replace")
        self.forget()

    def forget(self) -> None:
        """Drop all pairs, so that the next direction is the gradient."""
        self.pairs.clear()

    def close(self) -> None:
        """Free all vectors except x. Idempotent."""
        self._regions.free(but="x")

    def free(self) -> None:
        """Free all vectors. Idempotent."""
        self._regions.free()
