"""Where the old bytes of a change go: into an answer, or into an elastic exchange.

On mapped memory the native library writes there itself, as ``back`` and ``address`` say. Over
the wire the sink is called with the old bytes, and computes in numpy, in the same steps: both
give the same bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.memory import orders
from smbox.memory.orders import Back
from smbox.paths.work import Bytes, Operation

_MOVED: Final = int(Back.MOVED)
_DELTA: Final = int(Back.DELTA)
_OLD: Final = int(Back.OLD)

BLOCK_NBYTES: Final = 256 * 1024
"""Bytes computed at a time: the steps' results stay in a cache."""


class OldSink:
    """Keeps the old bytes.

    Args:
        first: byte of the region's data where the change begins.
        out: ``u8[nbytes of the change]``.
    """

    __slots__ = ("first", "out")

    back = _OLD

    def __init__(self, first: int, out: Bytes) -> None:
        self.first = first
        self.out = out

    def address(self, operation: Operation) -> int:
        """Return where the old bytes of an operation, or of a part of one, belong."""
        return orders.address_of(self.out) + operation.first - self.first

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Copy one piece; see ``work.Sink``."""
        self.out[first - self.first : limit - self.first] = old


class DeltaSink:
    """Keeps what an elastic exchange added to the region: ``rate * (x - old)``.

    Args:
        first: byte of the region's data where the change begins.
        x: the worker's elements, ``[n]`` of the region's type; not changed.
        rate: the moving rate, a scalar of the type that it is computed in.
        delta: ``[n]``, of the same type and on other memory.
    """

    __slots__ = ("delta", "first", "rate", "x")

    back = _DELTA

    def __init__(self, first: int, x: NDArray[Any], rate: Any, delta: NDArray[Any]) -> None:
        self.first = first
        self.x = x
        self.rate = rate
        self.delta = delta

    def address(self, operation: Operation) -> int:
        """Return where the delta of an operation, or of a part of one, belongs."""
        return orders.address_of(self.delta.view(np.uint8)) + operation.first - self.first

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Compute one piece; see ``work.Sink``."""
        part = _elements(first - self.first, limit - self.first, self.x)
        x, delta, center = self.x[part], self.delta[part], old.view(self.x.dtype)
        for block in _blocks(x):
            delta[block] = elastic_delta(x[block], center[block], self.rate)


class MoveSink:
    """Moves the worker's own elements toward the old ones: ``x -= rate * (x - old)``.

    Args:
        first: byte of the region's data where the change begins.
        x: the worker's elements, ``[n]``, which are also the change's source; of the region's
            type, or narrower.
        rate: the moving rate, a scalar of the type that it is computed in.
        itemsize: of the region's elements.
    """

    __slots__ = ("_itemsize", "_moved", "_moved_at", "first", "rate", "x")

    back = _MOVED

    def __init__(self, first: int, x: NDArray[Any], rate: Any, itemsize: int) -> None:
        self.first = first
        self.x = x
        self.rate = rate
        self._itemsize = itemsize
        self._moved_at = -1  # first element of the block moved last, or being moved
        self._moved = x[:0]

    def address(self, operation: Operation) -> int:
        """Return where the moved elements of an operation, or of a part of one, belong."""
        ahead = (operation.first - self.first) // self._itemsize * self.x.itemsize
        return orders.address_of(self.x.view(np.uint8)) + ahead

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Move one piece; of a narrow x the node has sent it moved. See ``work.Sink``."""
        begin = (first - self.first) // self._itemsize
        x = self.x[begin : (limit - self.first) // self._itemsize]
        if x.itemsize != self._itemsize:
            x.view(np.uint8)[:] = old
            return
        center = old.view(x.dtype)
        for block in _blocks(x):
            at = begin + block.start
            if at > self._moved_at:
                self._moved = moved(x[block], center[block], self.rate)
                self._moved_at = at
            if at == self._moved_at:  # a second time, if an interrupt cut the first one off
                x[block] = self._moved


def moved(x: NDArray[Any], center: NDArray[Any], rate: Any) -> NDArray[Any]:
    """Return ``x - rate * (x - center)`` as the ELASTIC kernel computes it, in x's own type."""
    delta = elastic_delta(x, center, rate)
    if x.dtype == delta.dtype:
        np.subtract(x, delta, out=delta)
        return delta
    rounded: NDArray[Any] = np.subtract(x.astype(delta.dtype), delta).astype(x.dtype)
    return rounded


def elastic_delta(x: NDArray[Any], center: NDArray[Any], rate: Any) -> NDArray[Any]:
    """Return ``rate * (x - center)``, as the ELASTIC kernel does, in the type of ``rate``."""
    compute = rate.dtype
    with np.errstate(all="ignore"):
        delta: NDArray[Any]
        if x.dtype == compute:
            delta = np.subtract(x, center)
        else:
            delta = np.subtract(x.astype(compute), center.astype(compute))
        np.multiply(delta, rate, out=delta)
    return delta


def _blocks(x: NDArray[Any]) -> list[slice]:
    step = BLOCK_NBYTES // x.itemsize
    return [slice(at, at + step) for at in range(0, x.size, step)]


def _elements(first: int, limit: int, x: NDArray[Any]) -> slice:
    return slice(first // x.itemsize, limit // x.itemsize)
