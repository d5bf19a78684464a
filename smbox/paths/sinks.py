"""Sinks: receivers of the old bytes of a change, for its answer or an elastic exchange.

On mapped memory the native library writes the result itself, as ``output`` and ``address`` say.
Over the wire the sink is called with the old bytes, and computes the result in numpy, in the
same steps: both give the same bits.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from smbox.memory import orders
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.orders import Output
from smbox.wire.ops import cut

Bytes = NDArray[np.uint8]


class Sink:
    """Receives the old bytes of a change, one committed piece after another, in order.

    Attributes:
        first: byte of the region's data where the change begins.
        out: receives the result.
        output: what the native library writes to ``address`` instead, an ``orders.Output``.
        is_given: the caller gave ``out``, which may therefore lie in the changed region.
    """

    __slots__ = ()
    first: int
    out: NDArray[Any]
    output: ClassVar[int]
    is_given: ClassVar[bool] = False

    def address(self, begin: int, source: int) -> int:  # noqa: ARG002 - for MoveSink
        """Return where the result of a change, or of the part of one, is stored.

        Args:
            begin: byte of the region's data where the change or part begins.
            source: address of its operand.
        """
        return orders.address_of(self.out) + begin - self.first

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Take the bytes that ``[first, limit)`` of the region's data held before the commit.

        ``old`` is valid only during the call. After an interrupt in a call the same piece is
        given again; a second call with the same piece must give the same result.
        """
        raise NotImplementedError


class OldSink(Sink, Struct, eq=False):
    """Stores the old bytes.

    Args:
        first: byte of the region's data where the change begins.
        out: ``u8[nbytes of the change]``.
    """

    first: int
    out: Bytes
    output: ClassVar[int] = int(Output.OLD)

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Copy one piece; see ``Sink``."""
        self.out[first - self.first : limit - self.first] = old


class _ResultSink(Sink, Struct, eq=False):
    """Stores a result computed from the operand x and the old elements.

    Args:
        first: byte of the region's data where the change begins.
        x: the operand, ``[n]`` of the region's type or narrower; not changed.
        scale: of the change, a scalar of the type that the result is computed in.
        out: ``[n]``, of the region's type, in memory of its own.
    """

    first: int
    x: NDArray[Any]
    scale: Any
    out: NDArray[Any]
    is_given: ClassVar[bool] = True

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Compute one piece; see ``Sink``."""
        itemsize = self.out.itemsize
        own = slice((first - self.first) // itemsize, (limit - self.first) // itemsize)
        self.out[own] = self._result(self.x[own], old.view(self.out.dtype))

    def _result(self, x: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
        raise NotImplementedError


class SumSink(_ResultSink):
    """Stores the sum that the region holds after the change: ``old + scale * x``."""

    output: ClassVar[int] = int(Output.NEW)

    def _result(self, x: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
        compute = self.scale.dtype
        with np.errstate(all="ignore"):
            added = np.multiply(x.astype(compute), self.scale)
            found: NDArray[Any] = np.add(old.astype(compute), added)
        return found


class DeltaSink(_ResultSink):
    """Stores what an elastic exchange added to the region: ``rate * (x - old)``."""

    output: ClassVar[int] = int(Output.DELTA)

    def _result(self, x: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
        return elastic_delta(x, old, self.scale)


class MoveSink(Sink, Struct, eq=False):
    """Moves the worker's own elements toward the old ones: ``x -= rate * (x - old)``.

    Args:
        first: byte of the region's data where the change begins.
        x: the worker's elements, ``[n]``, which are also the source of the change; of the
            region's type, or narrower.
        rate: the moving rate, a scalar of the type that the move is computed in.
        itemsize: of the region's elements.
    """

    first: int
    x: NDArray[Any]
    rate: Any
    itemsize: int
    _moved_at: int = -1  # first element of the stripe that was moved last
    _moved: NDArray[Any] | None = None  # the elements of that stripe
    output: ClassVar[int] = int(Output.MOVED)

    def address(self, begin: int, source: int) -> int:  # noqa: ARG002 - see Sink
        """Return where the moved elements are stored: in the operand."""
        return source

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Move one piece, a stripe at a time; see ``Sink``.

        The node computes the move of a narrow x, and sends the result.
        """
        x, begin, itemsize = self.x, self.first, self.itemsize
        if x.itemsize != itemsize:
            own = slice((first - begin) // itemsize, (limit - begin) // itemsize)
            x[own].view(np.uint8)[:] = old
            return
        center = old.view(x.dtype)
        for low, high in cut(first, limit, STRIPE_NBYTES):
            own = slice((low - begin) // itemsize, (high - begin) // itemsize)
            if own.start > self._moved_at:
                of_center = center[(low - first) // itemsize : (high - first) // itemsize]
                self._moved = moved(x[own], of_center, self.rate)
                self._moved_at = own.start
            if own.start == self._moved_at:  # a second time, if an interrupt cut it off
                x[own] = self._moved


def moved(x: NDArray[Any], center: NDArray[Any], rate: Any) -> NDArray[Any]:
    """Return ``x - rate * (x - center)`` as the ELASTIC kernel computes it, in x's own type."""
    delta = elastic_delta(x, center, rate)
    np.subtract(x.astype(delta.dtype, copy=False), delta, out=delta)
    return delta.astype(x.dtype, copy=False)


def elastic_delta(x: NDArray[Any], center: NDArray[Any], rate: Any) -> NDArray[Any]:
    """Return ``rate * (x - center)`` as the ELASTIC kernel computes it, in the type of rate."""
    compute = rate.dtype
    with np.errstate(all="ignore"):
        delta: NDArray[Any] = np.subtract(
            x.astype(compute, copy=False), center.astype(compute, copy=False)
        )
        np.multiply(delta, rate, out=delta)
    return delta
