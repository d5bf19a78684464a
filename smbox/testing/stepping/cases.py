"""Commits to be stepped, and the expected memory after each of them, computed by numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.memory.kernels import KERNELS, KernelCode, OptimizerCode, scatter_operand
from smbox.memory.orders import Output
from smbox.paths.sinks import moved
from smbox.testing import kernels
from smbox.testing.stepping.small_memory import STRIPE_NBYTES

Array = NDArray[Any]

_RATE: Final = np.float32(0.3)


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """One order of a native call.

    Attributes:
        kernel: a ``KernelCode`` or ``OptimizerCode``.
        regions: indices of the regions that it changes.
        source: the operand.
        scale: as ``native_scale`` returns it.
        first: first byte of the range.
        limit: byte after the last one; 0: the region's end.
        output: what the commit outputs to the channel's ring, if there is one.
        parameters: of an optimizer.
    """

    kernel: int
    regions: tuple[int, ...]
    source: Array
    scale: float = 1
    first: int = 0
    limit: int = 0
    output: Output = Output.NOTHING
    parameters: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One native call.

    Attributes:
        name: shown in the output.
        regions: the initial contents of each region.
        orders: the orders of the call.
        has_channel: whether the call is for a remote channel; else for a local client.
        answer_nbytes: size of the ring's entries; 0: the channel has no ring.
    """

    name: str
    regions: tuple[Array, ...]
    orders: tuple[Order, ...]
    has_channel: bool = False
    answer_nbytes: int = 0

    @property
    def extents(self) -> int:
        """The maximum number of regions that one order changes."""
        return max(len(order.regions) for order in self.orders)


class Piece(NamedTuple):
    """The part of an order that is one commit."""

    order: int
    first: int
    limit: int


@dataclass(slots=True)
class State:
    """The memory after some commits.

    Attributes:
        data: of each region.
        commits: of each region, by stripe.
        answers: the output of each commit in the ring, or None.
    """

    data: list[Array]
    commits: list[list[int]]
    answers: list[bytes | None] = field(default_factory=list)


def pieces_of(case: Case) -> Iterator[Piece]:
    """Cut the orders of a case at stripe boundaries."""
    for index, order in enumerate(case.orders):
        first = order.first
        limit = order.limit or case.regions[order.regions[0]].nbytes
        while first < limit:
            end = min(limit, (first // STRIPE_NBYTES + 1) * STRIPE_NBYTES)
            yield Piece(index, first, end)
            first = end


def replay(case: Case) -> list[State]:
    """Return the states of the memory before and after each commit."""
    stripes = [-(-region.nbytes // STRIPE_NBYTES) for region in case.regions]
    states = [State(list(case.regions), [[0] * count for count in stripes])]
    for piece in pieces_of(case):
        states.append(_after(states[-1], case.orders[piece.order], piece))
    return states


def _after(state: State, order: Order, piece: Piece) -> State:
    old = [state.data[region] for region in order.regions]
    itemsize, stripe = old[0].itemsize, piece.first // STRIPE_NBYTES
    part = slice(piece.first // itemsize, piece.limit // itemsize)
    begin = order.first // itemsize
    operand = slice(part.start - begin, part.stop - begin)
    last_commits = state.commits[order.regions[-1]]
    new = _changed(order, [c[part] for c in old], operand, last_commits[stripe] + 1)
    found = State(list(state.data), [list(row) for row in state.commits], list(state.answers))
    for region, c, made in zip(order.regions, old, new, strict=True):
        found.data[region] = c.copy()
        found.data[region][part] = made
        found.commits[region][stripe] += 1
    answers = {Output.OLD: old[0][part]}
    if order.output == Output.MOVED:
        answers[Output.MOVED] = moved(order.source[operand], old[0][part], _RATE)
    answer = answers.get(order.output)
    found.answers.append(None if answer is None else answer.tobytes())
    return found


def _changed(order: Order, c: Sequence[Array], operand: slice, step: int) -> tuple[Array, ...]:
    if order.parameters:
        code = OptimizerCode(order.kernel)
        g = order.source[operand]
        return kernels.stepped(code, c[0], c[1:], g, order.parameters, step)
    kernel = KernelCode(order.kernel)
    x = order.source if KERNELS[kernel].is_whole else order.source[operand]
    return (kernels.changed(kernel, c[0], x, order.scale),)


def _values(count: int, seed: int, dtype: str = "float32") -> Array:
    rng = np.random.default_rng(seed)
    kind = dtypes.by_name(dtype)
    if kind.kind == "float":
        return rng.standard_normal(count).astype(np.float32).astype(kind.numpy)
    return rng.integers(1, 100, count).astype(kind.numpy)


def _cases() -> Iterator[Case]:
    stripe = STRIPE_NBYTES // 4
    one, two = _values(stripe, 1), _values(2 * stripe - 5, 2)
    put = Order(KernelCode.REPLACE, (0,), _values(stripe, 3))
    add = Order(KernelCode.SUM, (0,), _values(two.size, 4), 0.5)
    yield Case("put of one stripe, local", (one,), (put,))
    yield Case("put of one stripe", (one,), (put,), has_channel=True)
    yield Case("accumulate over two stripes, local", (two,), (add,))
    yield Case("accumulate over two stripes", (two,), (add,), has_channel=True)
    inner = Order(KernelCode.SUM, (0,), _values(stripe, 5), 1.0, 100, 100 + STRIPE_NBYTES)
    again = Order(KernelCode.MAX, (1,), _values(7, 6, "int64"), output=Output.OLD)
    yield Case(
        "batch of two orders",
        (two, _values(7, 7, "int64")),
        (inner, again),
        has_channel=True,
        answer_nbytes=64,
    )
    rate = float(_RATE)
    center = Order(KernelCode.ELASTIC, (0,), _values(two.size, 8), rate, output=Output.OLD)
    yield Case(
        "elastic with an answer in the ring",
        (two,),
        (center,),
        has_channel=True,
        answer_nbytes=STRIPE_NBYTES,
    )
    narrow = Order(KernelCode.ELASTIC, (0,), _values(stripe, 9, "bfloat16"), rate)
    yield Case("elastic of bfloat16 into float32, local", (one,), (narrow,))
    x = _values(two.size, 13, "bfloat16")
    exchange = Order(KernelCode.ELASTIC, (0,), x, rate, output=Output.MOVED)
    yield Case(
        "elastic of bfloat16 with the moved operand in the ring",
        (two,),
        (exchange,),
        has_channel=True,
        answer_nbytes=STRIPE_NBYTES // 2,
    )
    half = Order(KernelCode.SUM, (0,), _values(99, 10, "float16"), 0.5)
    yield Case(
        "accumulate in float16", (_values(99, 11, "float16"),), (half,), has_channel=True
    )
    scale = Order(KernelCode.SCALE, (0,), _values(0, 12), rate)
    yield Case("scale over two stripes, local", (two,), (scale,))
    yield Case("scale over two stripes", (two,), (scale,), has_channel=True)
    yield from _optimizer_cases()
    yield from _whole_cases()


def _optimizer_cases() -> Iterator[Case]:
    p, g = _values(80, 20), _values(80, 21)  # 320 bytes: a stripe and a part of one
    zeros = np.zeros_like(p)
    adam = Order(OptimizerCode.ADAM, (2, 0, 1), g, 1.0, parameters=(1e-3, 0.9, 0.999, 1e-8))
    put = Order(KernelCode.REPLACE, (2,), _values(80, 22))  # not a step: only p counts it
    orders = (put, adam, adam)
    yield Case("adam over three extents", (zeros, zeros, p), orders, has_channel=True)
    momentum = Order(OptimizerCode.MOMENTUM, (0, 1), g, 1.0, parameters=(0.1, 0.9))
    yield Case("momentum over two extents, local", (p, zeros), (momentum,))


def _whole_cases() -> Iterator[Case]:
    table = _values(64, 30)
    rows = scatter_operand(np.array([5, 0, 5], np.int64), _values(24, 31).reshape(3, 8))
    add = Order(KernelCode.SCATTER_SUM, (0,), rows, 2.0)
    yield Case("scatter of rows, local", (table,), (add,))
    yield Case("scatter of rows", (table,), (add,), has_channel=True)
    counter, five = np.array([5], np.int64), np.array([5, 9], np.int64)
    swap = Order(KernelCode.COMPARE_SWAP, (0,), five, output=Output.OLD)
    yield Case(
        "compare and swap of a counter",
        (counter,),
        (swap, swap),
        has_channel=True,
        answer_nbytes=8,
    )
    words = np.array([0, 0, 2, 0, 0], np.uint64)
    arrivals = tuple(
        Order(KernelCode.ARRIVE, (0,), np.array([member], np.uint64)) for member in (7, 8)
    )
    yield Case("arrivals at a barrier, local", (words,), arrivals)


CASES: Final = tuple(_cases())

LOCK_FREE: Final = Case(
    "accumulate without locks",
    (_values(8, 40),),
    (Order(KernelCode.SUM, (0,), _values(8, 41), 0.5),),
)
