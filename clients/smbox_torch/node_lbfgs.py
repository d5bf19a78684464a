"""NodeLBFGS: the vectors of L-BFGS as regions; its commands travel and no element does.

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

from smbox.errors import ConfigError

__all__ = ["NodeLBFGS"]

CURVATURE_MIN: Final = 1e-10
"""A pair is kept if s.y exceeds this share of y.y: H stays positive definite."""

FACTOR_MAX: Final = 1e38

VECTORS: Final = ("x", "gradient", "base", "last", "direction")


class Pair(NamedTuple):
    """One of the last steps.

    Attributes:
        s: region ``[n]``, the move of x.
        y: region ``[n]``, the change of the gradient.
        rho: 1 / s.y
        gamma: s.y / y.y, the scale of the first H.
    """

    s: Any
    y: Any
    rho: float
    gamma: float


class NodeLBFGS:
    """The vectors of one minimisation and what is done with them; nothing evaluates here.

    Args:
        box: where the regions are made: ``name.x``, ``name.gradient``, ``name.s0`` and so on,
            2 m + 5 vectors in all.
        name: of the run.
        size: n.
        dtype: "float32" or "float64".
        history: m.

    Attributes:
        x: region ``[n]``: whoever evaluates reads it.
        gradient: region ``[n]``: whoever evaluates leaves the gradient at x there.
        pairs: those kept, the oldest first.

    Raises:
        ConfigError: another dtype, or m below 1; nothing was made.
        RegionExistsError: the name is in use.
    """

    def __init__(self, box: Any, name: str, size: int, dtype: str, history: int = 10) -> None:
        if dtype not in {"float32", "float64"}:
            raise ConfigError("L-BFGS computes in float32 or float64", dtype=dtype)
        if history < 1:
            raise ConfigError("L-BFGS keeps one pair at least", history=history)
        pairs = [f"{kind}{index}" for index in range(history) for kind in "sy"]
        self._box = box
        self._regions = {
            word: box.create(f"{name}.{word}", shape=(size,), dtype=dtype, layout="striped")
            for word in (*VECTORS, *pairs)
        }
        self.x, self.gradient, self._base, self._last, self._direction = (
            self._regions[word] for word in VECTORS
        )
        self._free = [
            (self._regions[f"s{index}"], self._regions[f"y{index}"]) for index in range(history)
        ]
        self.pairs: deque[Pair] = deque()

    def direct(self) -> float:
        """Compute ``d = H g``, and return ``g . d``: x falls along -d where that is positive.

        Without pairs H is the identity. The result is NaN where the gradient is not finite.
        """
        d, alphas = self._direction, []
        d.accumulate_from(self.gradient, op="replace")
        for pair in reversed(self.pairs):
            alphas.append(pair.rho * pair.s.dot(d))
            d.accumulate_from(pair.y, -_finite(alphas[-1]))
        if self.pairs:
            d.scale(self.pairs[-1].gamma)
        for pair in self.pairs:
            beta = pair.rho * pair.y.dot(d)
            d.accumulate_from(pair.s, _finite(alphas.pop() - beta))
        return float(self.gradient.dot(d))

    def begin(self) -> None:
        """Note x and its gradient: the next moves begin there."""
        self._base.accumulate_from(self.x, op="replace")
        self._last.accumulate_from(self.gradient, op="replace")

    def move(self, step: float) -> None:
        """Set ``x = base - step * d``."""
        self.x.accumulate_from(self._base, op="replace")
        self.x.accumulate_from(self._direction, -step)

    def learn(self, step: float) -> bool:
        """Keep the pair of the last move, whose gradient is there; tell whether it is kept.

        The oldest pair goes where m are kept. One without curvature is left out.
        """
        if not self._free:
            oldest = self.pairs.popleft()
            self._free.append((oldest.s, oldest.y))
        s, y = self._free[-1]
        s.accumulate_from(self._direction, op="replace")
        s.scale(-step)
        y.accumulate_from(self.gradient, op="replace")
        y.accumulate_from(self._last, -1.0)
        curvature, square = s.dot(y), y.dot(y)
        if not CURVATURE_MIN * square < curvature < math.inf:
            return False
        self._free.pop()
        self.pairs.append(Pair(s, y, 1 / curvature, curvature / square))
        return True

    def undo(self) -> None:
        """Go back to where ``begin`` was, and forget all pairs."""
        self.x.accumulate_from(self._base, op="replace")
        self.gradient.accumulate_from(self._last, op="replace")
        self.forget()

    def forget(self) -> None:
        """Forget all pairs: the next direction is the gradient."""
        self._free += [(pair.s, pair.y) for pair in self.pairs]
        self.pairs.clear()

    def close(self) -> None:
        """Free all vectors but x. Idempotent."""
        for word in [word for word in self._regions if word != "x"]:
            self._box.free(self._regions.pop(word))


def _finite(factor: float) -> float:
    """Return a factor, or 0 where a float32 region takes none: then g . d tells of NaN."""
    return factor if abs(factor) < FACTOR_MAX else 0.0
