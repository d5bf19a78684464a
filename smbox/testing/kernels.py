"""The arithmetic of a region in plain numpy: the oracle of smbox/native/kernels.h.

Every function returns new arrays and leaves its arguments alone. The result equals the native
one to the bit, except for the payload of a NaN. Legend:

    c the region's elements, x the operand, d what an elastic exchange moves, g a gradient

float16 and bfloat16 regions compute in float32 and round once. The operand of a float32 region
may be float16 or bfloat16: it widens exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.dtypes import DType
from smbox.memory.kernels import (
    PLACE_NBYTES,
    SCATTER_HEADER_NBYTES,
    BarrierWord,
    KernelCode,
    OptimizerCode,
    Scale,
    scale_of,
)
from smbox.wire.header import pack_scale

__all__ = [
    "Exchange",
    "changed",
    "compute_type",
    "dot",
    "exchange",
    "native_scale",
    "scale_bytes",
    "stepped",
]

Array = NDArray[Any]


def compute_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that elements of ``dtype`` are computed in."""
    is_half = dtype.itemsize == 2 and dtype.kind not in "iu"
    return np.dtype(np.float32) if is_half else dtype


def native_scale(code: KernelCode, dtype: DType, scale: Scale) -> float:
    """Return the scale as the native library reads it: a float, or an int64 for integers.

    Raises:
        ConfigError: as ``scale_of``.
    """
    factor = scale_of(code, dtype, scale)
    if dtype.kind == "float":
        return float(factor)
    return int(np.asarray(factor).astype(np.int64))


def scale_bytes(scale: Any) -> bytes:
    """Return the result of ``native_scale`` as an order has it."""
    return pack_scale(scale, "f" if isinstance(scale, float) else "i")


def changed(code: KernelCode, c: Array, x: Array, scale: Any = 1) -> Array:
    """Return what a kernel makes of ``c``.

    Args:
        code: any kernel but ELASTIC, whose ``exchange`` returns more.
        c: ``[n]``, the region's elements in the commit's range.
        x: ``[n]`` of the same type, or of a float that widens to it; of a kernel that takes
            the whole range, what its operand holds; of a scatter, its bytes; of SCALE empty.
        scale: from ``native_scale``.
    """
    if code == KernelCode.ELASTIC:
        return exchange(c, x, scale).c
    with np.errstate(all="ignore"):
        return _KERNELS[code](c, x, scale)


def _widened(c: Array, x: Array) -> tuple[Array, Array]:
    wide = compute_type(c.dtype)
    return c.astype(wide), x.astype(wide)


def _replace(c: Array, x: Array, _scale: Any) -> Array:
    return x.astype(c.dtype)


def _sum(c: Array, x: Array, scale: Any) -> Array:
    if c.dtype == np.bool_:
        return np.logical_or(c, x)
    a, b = _widened(c, x)
    factor = np.asarray(scale).astype(a.dtype)  # whole numbers wrap
    total: Array = (a + factor * b).astype(c.dtype)
    return total


def _scale(c: Array, _x: Array, scale: Any) -> Array:
    wide = c.astype(compute_type(c.dtype))
    product: Array = (np.asarray(scale).astype(wide.dtype) * wide).astype(c.dtype)
    return product


def _min(c: Array, x: Array, _scale: Any) -> Array:
    a, b = _widened(c, x)
    # A NaN passes on; of two zeros of either sign the region's stays.
    return np.where((a <= b) | (a != a), c, x.astype(c.dtype))  # noqa: PLR0124 - a NaN


def _max(c: Array, x: Array, _scale: Any) -> Array:
    a, b = _widened(c, x)
    return np.where((a >= b) | (a != a), c, x.astype(c.dtype))  # noqa: PLR0124 - a NaN


def _compare_swap(c: Array, x: Array, _scale: Any) -> Array:
    return x[1:].copy() if c[0] == x[0] else c.copy()


def _arrive(c: Array, x: Array, _scale: Any) -> Array:
    words = c.copy()
    arrived, parties = int(words[BarrierWord.ARRIVED]), int(words[BarrierWord.PARTIES])
    members = words[BarrierWord.MEMBERS :]
    is_damaged = parties != members.size or arrived >= parties
    if is_damaged or x[0] in members[:arrived]:
        return words
    members[arrived] = x[0]
    words[BarrierWord.GENERATION] += np.uint64(arrived + 1 == parties)
    words[BarrierWord.ARRIVED] = (arrived + 1) % parties
    return words


def _withdraw(c: Array, x: Array, _scale: Any) -> Array:
    words = c.copy()
    members = words[BarrierWord.MEMBERS :]
    arrived = min(int(words[BarrierWord.ARRIVED]), members.size)
    (found,) = np.nonzero(members[:arrived] == x[0])
    if found.size:
        members[found[0]] = members[arrived - 1]
        words[BarrierWord.ARRIVED] = arrived - 1
    return words


def _scatter(
    kernel: Callable[[Array, Array, Any], Array], c: Array, x: Array, by: Any
) -> Array:
    """Run a kernel on one row after the other: repeated places add up, rounded each time."""
    count, row_nbytes = (int(word) for word in x[:SCATTER_HEADER_NBYTES].view(np.uint64))
    middle = SCATTER_HEADER_NBYTES + count * PLACE_NBYTES
    places = x[SCATTER_HEADER_NBYTES:middle].view(np.int64)
    values = x[middle:].reshape(count, row_nbytes).view(c.dtype)
    data, size = c.copy(), row_nbytes // c.itemsize
    for place, row in zip(places.tolist(), values, strict=True):
        target = slice(place * size, (place + 1) * size)
        data[target] = kernel(data[target], row, by)
    return data


def _scatter_put(c: Array, x: Array, scale: Any) -> Array:
    return _scatter(_replace, c, x, scale)


def _scatter_sum(c: Array, x: Array, scale: Any) -> Array:
    return _scatter(_sum, c, x, scale)


_KERNELS: Final[dict[KernelCode, Callable[[Array, Array, Any], Array]]] = {
    KernelCode.REPLACE: _replace,
    KernelCode.SUM: _sum,
    KernelCode.MIN: _min,
    KernelCode.MAX: _max,
    KernelCode.COMPARE_SWAP: _compare_swap,
    KernelCode.ARRIVE: _arrive,
    KernelCode.WITHDRAW: _withdraw,
    KernelCode.SCATTER_PUT: _scatter_put,
    KernelCode.SCATTER_SUM: _scatter_sum,
    KernelCode.SCALE: _scale,
}


class Exchange(NamedTuple):
    """What an elastic exchange makes of both sides.

    Attributes:
        c: the region's elements.
        x: the operand's, in its own type.
        d: what was added, rounded to the region's type.
    """

    c: Array
    x: Array
    d: Array


def exchange(c: Array, x: Array, moving_rate: Any) -> Exchange:
    """Return ``c + d``, ``x - d`` and ``d = moving_rate (x - c)``, each rounded once."""
    with np.errstate(all="ignore"):
        a, b = _widened(c, x)
        d = a.dtype.type(moving_rate) * (b - a)
        return Exchange((a + d).astype(c.dtype), (b - d).astype(x.dtype), d.astype(c.dtype))


def dot(a: Array, b: Array) -> float:
    """Return the sum of products of ``[n]`` floats within one stripe, in the promised order.

    In float64: each product is added to one of eight sums, and then these are added.
    """
    products = np.zeros(-(-max(a.size, 1) // 8) * 8)
    with np.errstate(all="ignore"):
        products[: a.size] = a.astype(np.float64) * b.astype(np.float64)
        s = np.cumsum(np.vstack([np.zeros(8), products.reshape(-1, 8)]), axis=0)[-1]
        return float(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])))


def stepped(
    code: OptimizerCode,
    p: Array,
    states: Sequence[Array],
    g: Array,
    parameters: Sequence[float],
    number: int,
) -> tuple[Array, ...]:
    """Return parameters and states after one step; the formulas stand in memory/kernels.py.

    Args:
        code: which optimizer.
        p: ``[n]``, the parameters.
        states: ``[n]`` each, in the optimizer's order.
        g: ``[n]``, the gradient; it may widen to the type of ``p``.
        parameters: the optimizer's, in its order.
        number: of the step, from 1.
    """
    wide = compute_type(p.dtype)
    with np.errstate(all="ignore"):
        found = _OPTIMIZERS[code](
            p.astype(wide),
            [state.astype(wide) for state in states],
            g.astype(wide),
            parameters,
            number,
        )
        return tuple(array.astype(p.dtype) for array in found)


def _momentum(
    p: Array, states: Sequence[Array], g: Array, by: Sequence[float], _t: int
) -> tuple[Array, ...]:
    lr, mu = _as(p, by[:2])
    m = states[0] * mu + g
    return p - lr * m, m


def _nesterov(
    p: Array, states: Sequence[Array], g: Array, by: Sequence[float], _t: int
) -> tuple[Array, ...]:
    lr, mu = _as(p, by[:2])
    m = states[0] * mu + g
    return p - lr * (g + mu * m), m


def _adagrad(
    p: Array, states: Sequence[Array], g: Array, by: Sequence[float], _t: int
) -> tuple[Array, ...]:
    lr, eps = _as(p, by[:2])
    s = states[0] + g * g
    return p - lr * g / (np.sqrt(s) + eps), s


def _adam(
    p: Array, states: Sequence[Array], g: Array, by: Sequence[float], t: int
) -> tuple[Array, ...]:
    lr, beta1, beta2, eps = by
    step, root = lr / (1 - beta1**t), math.sqrt(1 - beta2**t)
    b1, b2, c1, c2, e, step_p, root_p = _as(
        p, (beta1, beta2, 1 - beta1, 1 - beta2, eps, step, root)
    )
    m = states[0] * b1 + g * c1
    v = states[1] * b2 + g * g * c2
    return p - step_p * m / (np.sqrt(v) / root_p + e), m, v


def _as(p: Array, values: Sequence[float]) -> list[Any]:
    """Round parameters to the type that is computed in."""
    return [p.dtype.type(value) for value in values]


_Step = Callable[[Array, Sequence[Array], Array, Sequence[float], int], tuple[Array, ...]]
_OPTIMIZERS: Final[dict[OptimizerCode, _Step]] = {
    OptimizerCode.MOMENTUM: _momentum,
    OptimizerCode.NESTEROV: _nesterov,
    OptimizerCode.ADAGRAD: _adagrad,
    OptimizerCode.ADAM: _adam,
}
