"""Where the old bytes of a change go: into an answer, or into an elastic exchange. Pure.

A sink may be called twice with the same piece, when an interrupt cut its first call short;
the second call gives the same result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox.memory.kernels import elastic_delta
from smbox.paths.base import Bytes


class OldSink:
    """Keeps the old bytes.

    Args:
        first: byte of the region's data where the change begins.
        out: ``u8[nbytes of the change]``.
    """

    __slots__ = ("first", "out")

    def __init__(self, first: int, out: Bytes) -> None:
        self.first = first
        self.out = out

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Copy one piece; see ``base.Sink``."""
        self.out[first - self.first : limit - self.first] = old


class DeltaSink:
    """Keeps what an elastic exchange added to the region: ``rate * (x - old)``.

    Args:
        first: byte of the region's data where the change begins.
        x: the worker's elements, ``[n]``, as they were sent; not changed.
        rate: the moving rate, a scalar of that type.
        delta: ``[n]``, of the same type and on other memory.
    """

    __slots__ = ("delta", "first", "rate", "x")

    def __init__(self, first: int, x: NDArray[Any], rate: Any, delta: NDArray[Any]) -> None:
        self.first = first
        self.x = x
        self.rate = rate
        self.delta = delta

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Compute one piece; see ``base.Sink``."""
        part = _elements(first - self.first, limit - self.first, self.x)
        self.delta[part] = elastic_delta(self.x[part], old.view(self.x.dtype), self.rate)


class MoveSink:
    """Moves the worker's own elements toward the old ones: ``x -= rate * (x - old)``.

    Args:
        first: byte of the region's data where the change begins.
        x: the worker's elements, ``[n]``, which are also the change's source.
        rate: the moving rate, a scalar of that type.
    """

    __slots__ = ("_staged", "_staged_first", "first", "rate", "x")

    def __init__(self, first: int, x: NDArray[Any], rate: Any) -> None:
        self.first = first
        self._staged: NDArray[Any] | None = None
        self._staged_first = -1
        self.x = x
        self.rate = rate

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Move one piece; see ``base.Sink``.

        The moved piece is whole before x changes, and copying it twice does no harm.
        """
        part = _elements(first - self.first, limit - self.first, self.x)
        if self._staged_first != first:
            delta = elastic_delta(self.x[part], old.view(self.x.dtype), self.rate)
            with np.errstate(all="ignore"):
                self._staged = np.subtract(self.x[part], delta, out=delta)
            self._staged_first = first
        self.x[part] = self._staged


def _elements(first: int, limit: int, x: NDArray[Any]) -> slice:
    return slice(first // x.itemsize, limit // x.itemsize)
