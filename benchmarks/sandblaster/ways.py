"""The ways to run L-BFGS: commands on vectors at the node, or vectors at the coordinator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import smbox
from sandblaster.rows import HISTORY
from smbox_torch.sandblaster.node_lbfgs import NodeLBFGS

Vector = NDArray[np.float32]


class Shipped:
    """The verbs of ``NodeLBFGS`` with all vectors here: gradients come, parameters go."""

    def __init__(self, box: smbox.Box, name: str, size: int) -> None:
        self._box = box
        self.x = box.create(f"{name}.x", shape=size)
        self.gradient = box.create(f"{name}.gradient", shape=size)
        self.pairs: deque[tuple[Vector, Vector, float, float]] = deque(maxlen=HISTORY)
        self._x = np.zeros(size, np.float32)
        self._g: Vector | None = None
        self._base = self._last = self._d = self._x

    def direct(self) -> float:
        """Compute d = H g; return g.d."""
        g = self._g = self.gradient.get() if self._g is None else self._g
        d, alphas = g.copy(), []
        for s, y, rho, _ in reversed(self.pairs):
            alphas.append(rho * _dot(s, d))
            d -= np.float32(alphas[-1]) * y
        if self.pairs:
            d *= np.float32(self.pairs[-1][3])
        for s, y, rho, _ in self.pairs:
            d += np.float32(alphas.pop() - rho * _dot(y, d)) * s
        self._d = d
        return _dot(g, d)

    def begin(self) -> None:
        """Note x and its gradient."""
        assert self._g is not None, "direct came before"
        self._base, self._last = self._x, self._g

    def move(self, step: float) -> None:
        """Set x = base - step d, and send it."""
        self._x = self._base - np.float32(step) * self._d
        self.x.put(self._x)

    def learn(self, step: float) -> bool:
        """Fetch the gradient, and keep the pair."""
        self._g = self.gradient.get()
        s, y = np.float32(-step) * self._d, self._g - self._last
        curvature, square = _dot(s, y), _dot(y, y)
        self.pairs.append((s, y, 1 / curvature, curvature / square))
        return True

    def close(self) -> None:
        """Free the gradient, as ``NodeLBFGS`` does."""
        self._box.free(self.gradient)


def _dot(a: Vector, b: Vector) -> float:
    return float(np.dot(a, b))


WAYS: Final[dict[str, Callable[[smbox.Box, str, int], Any]]] = {
    "commands": lambda box, name, size: NodeLBFGS(box, name, size, "float32", HISTORY),
    "vectors": Shipped,
}
