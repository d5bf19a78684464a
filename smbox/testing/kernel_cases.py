"""Test cases for every kernel, dtype and answer of the native library, with numpy's results.

Operands hold random bits: numbers near one, denormals, infinities, NaN, zeros of both signs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.dtypes import DType
from smbox.memory.kernels import (
    KERNELS,
    OPTIMIZERS,
    KernelCode,
    OptimizerCode,
    scatter_operand,
)
from smbox.memory.orders import Output
from smbox.testing import kernels as oracle

Array = NDArray[Any]

__all__ = ["KernelCase", "difference", "elements", "kernel_cases", "unaligned"]

_FLOAT32: Final = dtypes.by_name("float32")
_NARROW: Final = tuple((_FLOAT32, dtypes.by_name(name)) for name in ("float16", "bfloat16"))
_PAIRS: Final = tuple((dtype, dtype) for dtype in dtypes.TABLE) + _NARROW
_FLOAT_PAIRS: Final = tuple(pair for pair in _PAIRS if pair[0].kind == "float")
_SCALES: Final[dict[str, tuple[float, ...]]] = {
    "float": (1, 0.3, -2.0, 0.0),
    "int": (1, 3, -1),
    "uint": (1, 3),
    "bool": (1,),
}
_PARAMETERS: Final = {
    OptimizerCode.MOMENTUM: (0.1, 0.9),
    OptimizerCode.NESTEROV: (0.1, 0.9),
    OptimizerCode.ADAGRAD: (0.1, 1e-10),
    OptimizerCode.ADAM: (1e-3, 0.9, 0.999, 1e-8),
}
_SPECIAL: Final = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 6e-8, 3e38, 65504.0]
)


@dataclass(frozen=True, slots=True, eq=False)
class KernelCase:
    """One order on new regions, and the contents that it must leave.

    Attributes:
        name: kernel, element types and answer.
        kernel: a ``KernelCode`` or ``OptimizerCode``.
        regions: contents of the regions that it changes.
        source: the operand.
        operand: dtype code of the operand; of a whole kernel, the region's.
        scale: as ``native_scale`` returns it.
        output: kind of answer, an ``orders.Output``.
        parameters: an optimizer's.
        wanted: the regions' contents afterwards.
        answer: the answer, or None.
    """

    name: str
    kernel: int
    regions: tuple[Array, ...]
    source: Array
    operand: int
    scale: float
    wanted: tuple[Array, ...]
    output: Output = Output.NOTHING
    parameters: tuple[float, ...] = ()
    answer: Array | None = None


def elements(dtype: DType, count: int, seed: int) -> Array:
    """Return ``[count]`` elements of random bits, numbers near one, and special values."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    bits = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype.numpy).copy()
    if dtype.kind != "float":
        return bits
    near = rng.standard_normal(count).astype(np.float32).astype(dtype.numpy)
    found: Array = np.where(rng.random(count) < 0.6, near, bits)
    with np.errstate(over="ignore"):
        found[: _SPECIAL.size] = rng.permutation(_SPECIAL).astype(dtype.numpy)[:count]
    return found


def unaligned(array: Array) -> NDArray[np.uint8]:
    """Return a copy of an array's bytes at an odd address."""
    space = np.zeros(array.nbytes + 2, np.uint8)
    begin = 1 + space.ctypes.data % 2
    found = space[begin : begin + array.nbytes]
    found[:] = array.reshape(-1).view(np.uint8)
    return found


def difference(found: Array, wanted: Array) -> str | None:
    """Return where two arrays differ in a bit, or None; all NaN are equal."""
    bits = f"u{wanted.itemsize}"
    is_same = found.view(bits) == wanted.view(bits)
    if wanted.dtype.kind not in "biu":
        with np.errstate(invalid="ignore"):  # signalling ones
            is_same |= np.isnan(found) & np.isnan(wanted)
    wrong = np.flatnonzero(~is_same)[:5]
    return f"at {wrong}: {found[wrong]} and not {wanted[wrong]}" if wrong.size else None


def kernel_cases(counts: tuple[int, ...]) -> Iterator[KernelCase]:
    """Yield a case for every kernel, element type, answer and scale, and each length.

    Args:
        counts: elements of a region; longer ones take several blocks and stripes.
    """
    for count in counts:
        yield from _elementwise(count)
        yield from _elastic(count)
        yield from _optimizers(count)
    yield from _whole()


def _elementwise(count: int) -> Iterator[KernelCase]:
    codes = [code for code, row in KERNELS.items() if not row.is_whole]
    for code, (dtype, operand) in itertools.product(codes, _PAIRS):
        if code == KernelCode.ELASTIC or dtype.kind not in KERNELS[code].kinds:
            continue
        size = 0 if code is KernelCode.SCALE else count
        if not size and operand is not dtype:
            continue  # nothing that could be narrower
        scales = _SCALES[dtype.kind] if KERNELS[code].has_scale else (1,)
        for seed, scale in enumerate(scales):
            c, x = elements(dtype, count, seed), elements(operand, size, seed + 99)
            factor = oracle.native_scale(code, dtype, scale)
            yield KernelCase(
                f"{code.name}-{dtype}-{operand}",
                code,
                (c,),
                x,
                operand.code,
                factor,
                (oracle.changed(code, c, x, factor),),
                Output.OLD,
                answer=c,
            )


def _elastic(count: int) -> Iterator[KernelCase]:
    for (dtype, operand), output in itertools.product(_FLOAT_PAIRS, Output):
        c, x = elements(dtype, count, 1), elements(operand, count, 2)
        rate = oracle.native_scale(KernelCode.ELASTIC, dtype, 0.3)
        made = oracle.exchange(c, x, rate)
        yield KernelCase(
            f"ELASTIC-{dtype}-{operand}-{output.name}",
            KernelCode.ELASTIC,
            (c,),
            x,
            operand.code,
            rate,
            (made.c,),
            output,
            answer={
                Output.MOVED: made.x,
                Output.DELTA: made.d,
                Output.OLD: c,
                Output.NEW: made.c,
            }.get(output),
        )


def _optimizers(count: int) -> Iterator[KernelCase]:
    for (dtype, operand), code in itertools.product(_FLOAT_PAIRS, OptimizerCode):
        seeds = range(2, 2 + len(OPTIMIZERS[code].states))
        states = [np.abs(elements(dtype, count, seed)) for seed in seeds]
        p, g, by = elements(dtype, count, 1), elements(operand, count, 50), _PARAMETERS[code]
        yield KernelCase(
            f"{code.name}-{dtype}-{operand}",
            code,
            (p, *states),
            g,
            operand.code,
            1.0,
            oracle.stepped(code, p, states, g, by, 1),
            parameters=by,
        )


def _whole() -> Iterator[KernelCase]:
    for dtype in dtypes.TABLE:
        c, values = elements(dtype, 45, 1), elements(dtype, 30, 2).reshape(6, 5)
        x = scatter_operand(np.array([8, 0, 3, 8, 8, 3], np.int64), values)
        yield _whole_case(KernelCode.SCATTER_PUT, dtype, c, x, 1)
        for scale in _SCALES[dtype.kind]:
            yield _whole_case(KernelCode.SCATTER_SUM, dtype, c, x, scale)
        for old in (4, 5) if dtype.kind in {"int", "uint"} else ():
            counter, swap = np.array([5], dtype.numpy), np.array([old, 9], dtype.numpy)
            yield _whole_case(KernelCode.COMPARE_SWAP, dtype, counter, swap, 1)
    for member in (7, 8):
        words = np.array([3, 1, 2, 7, 0], np.uint64)  # two parties, and 7 has arrived
        source, uint64 = np.array([member], np.uint64), dtypes.by_name("uint64")
        for code in (KernelCode.ARRIVE, KernelCode.WITHDRAW):
            yield _whole_case(code, uint64, words, source, 1)


def _whole_case(code: KernelCode, dtype: DType, c: Array, x: Array, scale: float) -> KernelCase:
    factor = oracle.native_scale(code, dtype, scale)
    wanted = (oracle.changed(code, c, x, factor),)
    return KernelCase(f"{code.name}-{dtype}", code, (c,), x, dtype.code, factor, wanted)
