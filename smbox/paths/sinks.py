"""Where the old bytes of a change go: into an answer, or into an elastic exchange.

A sink may be called twice with the same piece, when an interrupt cut its first call short;
the second call gives the same result.

The arithmetic of an exchange is one pass over the piece where it is compiled. In numpy it is
three over what came from far; on mapped memory the kernel keeps the delta, which leaves one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.memory import accel
from smbox.memory.kept_delta import KeptDelta
from smbox.memory.kernels import elastic_delta
from smbox.memory.modes import Back, Mode
from smbox.memory.quiet import quietly
from smbox.paths.base import Bytes

_MODES: Final = {"f": int(Mode.ELASTIC_FLOAT32), "d": int(Mode.ELASTIC_FLOAT64)}
_MOVED: Final = int(Back.MOVED)
_DELTA: Final = int(Back.DELTA)


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

    Attributes:
        kept: for a ``Change``: a commit in this process may leave the piece's delta there.
    """

    __slots__ = ("delta", "first", "kept", "rate", "x")

    def __init__(self, first: int, x: NDArray[Any], rate: Any, delta: NDArray[Any]) -> None:
        self.first = first
        self.x = x
        self.rate = rate
        self.delta = delta
        self.kept = KeptDelta()

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Compute one piece; see ``base.Sink``."""
        part = _elements(first - self.first, limit - self.first, self.x)
        x, delta = self.x[part], self.delta[part]
        nothing = np.zeros(1, np.uint64)  # to compute it twice does no harm
        if not _is_done_compiled(nothing, 1, self.rate, _DELTA, delta, x, old):
            delta[:] = _delta(self.kept, x, old, self.rate)


class MoveSink:
    """Moves the worker's own elements toward the old ones: ``x -= rate * (x - old)``.

    Args:
        first: byte of the region's data where the change begins.
        x: the worker's elements, ``[n]``, which are also the change's source.
        rate: the moving rate, a scalar of that type.

    Attributes:
        kept: for a ``Change``: a commit in this process may leave the piece's delta there.
    """

    __slots__ = ("_last", "_moved", "_moving", "first", "kept", "rate", "x")

    def __init__(self, first: int, x: NDArray[Any], rate: Any) -> None:
        self.first = first
        self._last = np.zeros(1, np.uint64)  # 1 + first byte of the last piece that moved
        self._moving = -1  # the same in numpy: first byte of the last piece that was begun
        self._moved: list[NDArray[Any]] = []  # and not empty once it moved
        self.x = x
        self.rate = rate
        self.kept = KeptDelta()

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Move one piece; see ``base.Sink``."""
        x = self.x[_elements(first - self.first, limit - self.first, self.x)]
        if self._moving != first:
            if _is_done_compiled(self._last, first + 1, self.rate, _MOVED, x, x, old):
                return
            self._moved.clear()
            self._moving = first
        if not self._moved:
            delta = _delta(self.kept, x, old, self.rate)
            # Subtracted and noted inside one call, which no signal handler can divide.
            quietly(self._moved.extend, map(np.subtract, (x,), (delta,), (x,)))


def _delta(kept: KeptDelta, x: NDArray[Any], old: Bytes, rate: Any) -> NDArray[Any]:
    """Return what an exchange added, in an array that nobody else uses."""
    delta = kept.take()
    return elastic_delta(x, old.view(x.dtype), rate) if delta is None else delta


def _is_done_compiled(
    last: NDArray[np.uint64],
    mark: int,
    rate: Any,
    how: int,
    back: NDArray[Any],
    x: NDArray[Any],
    old: Bytes,
) -> bool:
    """Hand back a piece by compiled code, unless ``last`` says so; False: it cannot."""
    engine, mode = accel.loaded(), _MODES.get(x.dtype.char)
    if engine is None or engine.give_back_once is None or mode is None:
        return False
    if not back.nbytes == x.nbytes == old.nbytes:
        return False  # numpy says what is wrong
    views = (back.view(np.uint8), x.view(np.uint8), old)
    engine.give_back_once(last, mark, mode, float(rate), how, *views)
    return True


def _elements(first: int, limit: int, x: NDArray[Any]) -> slice:
    return slice(first // x.itemsize, limit // x.itemsize)
