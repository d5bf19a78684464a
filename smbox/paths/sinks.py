"""Where the old bytes of a change go: into an answer, or into an elastic exchange.

On mapped memory the native library writes there itself, as ``back`` and ``address`` say. Over
the wire the sink is called with the old bytes, and computes in numpy, in the same steps: both
give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from smbox.memory import orders
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.orders import Back
from smbox.wire.ops import cut

Bytes = NDArray[np.uint8]


class Sink(Protocol):
    """Takes the old bytes of a change, committed piece by committed piece, in order."""

    @property
    def back(self) -> int:
        """What the native library hands back instead, an ``orders.Back``."""
        ...

    def address(self, begin: int, source: int) -> int:
        """Return where to, for a change or a part of one that begins at a byte of the data.

        Args:
            begin: that byte.
            source: address of its operand.
        """
        ...

    def part(self, begin: int, limit: int, first: int) -> Sink:
        """Return the sink of bytes ``[begin, limit)`` of the change, done to another region.

        Args:
            begin: from the first byte of the change.
            limit: byte behind the last.
            first: byte of the other region's data where that begins.
        """
        ...

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Take the bytes that ``[first, limit)`` of the region's data held before.

        Called after the commit. ``old`` is only lent for the call. When an exception (an
        interrupt) left the last call half done, the same piece is given again: so a sink
        gives the same result when it is called twice with the same piece.
        """


@dataclass(slots=True, eq=False)
class OldSink:
    """Keeps the old bytes.

    Args:
        first: byte of the region's data where the change begins.
        out: ``u8[nbytes of the change]``.
    """

    first: int
    out: Bytes
    back = int(Back.OLD)

    def address(self, begin: int, source: int) -> int:  # noqa: ARG002 - see Sink
        """Return where the old bytes of an operation, or of a part of one, belong."""
        return orders.address_of(self.out) + begin - self.first

    def part(self, begin: int, limit: int, first: int) -> OldSink:
        """Return the sink of a part of the change; see ``Sink``."""
        return OldSink(first, self.out[begin:limit])

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Copy one piece; see ``Sink``."""
        self.out[first - self.first : limit - self.first] = old


@dataclass(slots=True, eq=False)
class _ResultSink:
    """Fills an array with what comes of the operand x and the old elements.

    Args:
        first: byte of the region's data where the change begins.
        x: the operand, ``[n]`` of the region's type or narrower; not changed.
        scale: of the change, a scalar of the type that it is computed in.
        out: ``[n]``, of the region's type and on other memory.
    """

    first: int
    x: NDArray[Any]
    scale: Any
    out: NDArray[Any]

    def address(self, begin: int, source: int) -> int:  # noqa: ARG002 - see Sink
        """Return where the results of an operation, or of a part of one, belong."""
        return orders.address_of(self.out.view(np.uint8)) + begin - self.first

    def part(self, begin: int, limit: int, first: int) -> Self:
        """Return the sink of a part of the change; see ``Sink``."""
        own = slice(begin // self.out.itemsize, limit // self.out.itemsize)
        return type(self)(first, self.x[own], self.scale, self.out[own])


class SumSink(_ResultSink):
    """Keeps the sum that the region holds after the change: ``old + scale * x``."""

    __slots__ = ()
    back = int(Back.NEW)

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Compute one piece; see ``Sink``."""
        c, compute, itemsize = old.view(self.out.dtype), self.scale.dtype, self.out.itemsize
        part = slice((first - self.first) // itemsize, (limit - self.first) // itemsize)
        with np.errstate(all="ignore"):
            added = np.multiply(self.x[part].astype(compute), self.scale)
            self.out[part] = np.add(c.astype(compute), added)


class DeltaSink(_ResultSink):
    """Keeps what an elastic exchange added to the region: ``rate * (x - old)``."""

    __slots__ = ()
    back = int(Back.DELTA)

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Compute one piece; see ``Sink``."""
        center = old.view(self.out.dtype)
        for part, of_center in _stripes(first, limit, self.first, self.out.itemsize):
            self.out[part] = elastic_delta(self.x[part], center[of_center], self.scale)


class MoveSink(Struct, eq=False):
    """Moves the worker's own elements toward the old ones: ``x -= rate * (x - old)``.

    Args:
        first: byte of the region's data where the change begins.
        x: the worker's elements, ``[n]``, which are also the change's source; of the region's
            type, or narrower.
        rate: the moving rate, a scalar of the type that it is computed in.
        itemsize: of the region's elements.
    """

    first: int
    x: NDArray[Any]
    rate: Any
    itemsize: int
    _moved_at: int = -1  # first element of the stripe moved last, or being moved
    _moved: NDArray[Any] | None = None  # the elements of that stripe
    back: ClassVar[int] = int(Back.MOVED)

    def address(self, begin: int, source: int) -> int:  # noqa: ARG002 - see Sink
        """Return where the moved elements belong: where they are."""
        return source

    def part(self, begin: int, limit: int, first: int) -> MoveSink:
        """Return the sink of a part of the change; see ``Sink``."""
        own = slice(begin // self.itemsize, limit // self.itemsize)
        return MoveSink(first, self.x[own], self.rate, self.itemsize)

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Move one piece; of a narrow x the node has sent it moved. See ``Sink``."""
        x = self.x
        if x.itemsize != self.itemsize:
            begin, end = first - self.first, limit - self.first
            x[begin // self.itemsize : end // self.itemsize].view(np.uint8)[:] = old
            return
        center = old.view(x.dtype)
        for part, of_center in _stripes(first, limit, self.first, self.itemsize):
            if part.start > self._moved_at:
                self._moved = moved(x[part], center[of_center], self.rate)
                self._moved_at = part.start
            if part.start == self._moved_at:  # a second time, if an interrupt cut it off
                x[part] = self._moved


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


def _stripes(
    first: int, limit: int, begin: int, itemsize: int
) -> Iterator[tuple[slice, slice]]:
    """Cut a piece at the region's stripes, each of which moves at once, whatever interrupts.

    Args:
        first: byte of the region's data where the piece begins.
        limit: byte behind it.
        begin: byte where the change begins.
        itemsize: of the elements.

    Yields:
        The elements of a stripe in the change's arrays, and the same in the piece.
    """
    for low, high in cut(first, limit, STRIPE_NBYTES):
        of_change = slice((low - begin) // itemsize, (high - begin) // itemsize)
        yield of_change, slice((low - first) // itemsize, (high - first) // itemsize)
