"""Kernels and server-side optimizers: their numbers, operands, scales and parameters. Pure.

smbox/native/kernels.h computes them.

    c the region's elements, x the operand, s the scale

    REPLACE  c = x              MIN  c = min(c, x)      ELASTIC  d = s * (x - c);  c += d
    SUM      c += s * x         MAX  c = max(c, x)      SCALE    c *= s, without an operand

Other kernels are "whole": one call has the entire range, and the operand has a length of its
own.

    COMPARE_SWAP  x = [expected, desired]; c[0] = desired if c[0] == expected
    ARRIVE        x = [member] of a barrier: adds the member; the last one opens the barrier
    WITHDRAW      x = [member] of a barrier: removes an arrival at the current generation
    SCATTER_PUT   x = rows and their places: see ``scatter_operand``
    SCATTER_SUM   the same; repeated places add up

Integers wrap around; of bools, SUM and MAX are "or" and MIN is "and"; MIN and MAX propagate
NaN. float16 and bfloat16 regions compute in float32 and round once. The operand of a float32
region may be float16 or bfloat16, and widens exactly.

Server-side optimizers are steps of a region whose state lies in sibling regions. They are named
operations: the node never runs code of a client. They compute in the region's type, element by
element. Defaults and order of operations are those of ``torch.optim``: the results are equal.

    p parameters, g gradient, lr step size, t number of the step (from 1)

    MOMENTUM  m = mu m + g;  p -= lr m                          (torch.optim.SGD, dampening 0)
    NESTEROV  m = mu m + g;  p -= lr (g + mu m)                 (the same with nesterov=True)
    ADAGRAD   s = s + g g;   p -= lr g / (sqrt(s) + eps)        (Duchi et al. 2011)
              s begins as initial_accumulator_value
    ADAM      m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g g       (Kingma and Ba, 1412.6980)
              p -= lr / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)

A step of plain SGD is ``accumulate(g, scale=-lr)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from smbox.dtypes import DType, Kind
from smbox.errors import ConfigError
from smbox.wire.header import NO_SCALE, pack_scale

Scale = int | float | np.generic
Parameters = Sequence[float]
SCATTER_HEADER_NBYTES: Final = 16
PLACE_NBYTES: Final = 8


class KernelCode(IntEnum):
    """Number of a kernel in journals and messages; never reused."""

    __hash__ = int.__hash__  # Enum's hash is slower: Python code

    REPLACE = 1
    SUM = 2
    MIN = 3
    MAX = 4
    ELASTIC = 5
    COMPARE_SWAP = 6
    ARRIVE = 7
    WITHDRAW = 8
    SCATTER_PUT = 9
    SCATTER_SUM = 10
    SCALE = 11


class BarrierWord:
    """Words of a barrier region; the arrived members follow them."""

    GENERATION: Final = 0
    ARRIVED: Final = 1
    PARTIES: Final = 2
    MEMBERS: Final = 3


class Kernel(Struct, frozen=True):
    """One row of the table.

    Attributes:
        kinds: element kinds that it is defined for.
        has_scale: whether it takes a scale other than 1.
        is_whole: whether one call has the entire range, with an operand of its own length.
    """

    kinds: frozenset[Kind]
    has_scale: bool = False
    is_whole: bool = False


_ALL: Final = frozenset[Kind](("bool", "int", "uint", "float"))
_WHOLE_NUMBERS: Final = frozenset[Kind](("int", "uint"))
_FLOATS: Final = frozenset[Kind](("float",))
_NUMBERS: Final = _WHOLE_NUMBERS | _FLOATS
_WORDS: Final = frozenset[Kind](("uint",))

KERNELS: Final[dict[KernelCode, Kernel]] = {
    KernelCode.REPLACE: Kernel(_ALL),
    KernelCode.SUM: Kernel(_ALL, has_scale=True),
    KernelCode.MIN: Kernel(_ALL),
    KernelCode.MAX: Kernel(_ALL),
    KernelCode.ELASTIC: Kernel(_FLOATS, has_scale=True),
    KernelCode.COMPARE_SWAP: Kernel(_WHOLE_NUMBERS, is_whole=True),
    KernelCode.ARRIVE: Kernel(_WORDS, is_whole=True),
    KernelCode.WITHDRAW: Kernel(_WORDS, is_whole=True),
    KernelCode.SCATTER_PUT: Kernel(_ALL, is_whole=True),
    KernelCode.SCATTER_SUM: Kernel(_ALL, has_scale=True, is_whole=True),
    KernelCode.SCALE: Kernel(_NUMBERS, has_scale=True),
}


ONE: Final = {kind: pack_scale(1, kind[0]) for kind in sorted(_ALL)}
"""The scale 1 as bytes, by kind of elements."""


def packed_scale(code: KernelCode, dtype: DType, scale: Scale) -> bytes:
    """Return a scale as it stands in orders and messages; raises as ``scale_of``."""
    factor = scale_of(code, dtype, scale)
    return pack_scale(factor.item(), dtype.kind[0]) if KERNELS[code].has_scale else NO_SCALE


def scale_of(code: KernelCode, dtype: DType, scale: Scale = 1) -> Any:
    """Return ``scale`` as a scalar of the type that the kernel computes in.

    Floats are rounded to that type; integers must fit exactly. Bools, and kernels without a
    scale, accept 1 only.

    Raises:
        ConfigError: the kernel is not defined for these elements, or the scale does not fit.
    """
    try:
        found = _scale_of(code, dtype, scale)
        # 0.0 and -0.0 are one key of the cache: a zero is computed anew.
        return found or _scale_of.__wrapped__(code, dtype, scale)
    except (TypeError, OverflowError) as error:
        raise ConfigError("scale is not a number that fits", dtype=dtype.name) from error


@lru_cache(maxsize=256, typed=True)  # else True and 1.0 would be one key
def _scale_of(code: KernelCode, dtype: DType, scale: Scale) -> Any:
    kernel = KERNELS[code]
    if dtype.kind not in kernel.kinds:
        raise ConfigError("not defined for these elements", kernel=code.name, dtype=dtype.name)
    if dtype.kind == "bool" or not kernel.has_scale:
        if scale != 1:
            raise ConfigError("takes no scale", kernel=code.name, dtype=dtype.name, scale=scale)
        return dtype.numpy.type(1)
    return _float_scale(dtype, scale) if dtype.kind == "float" else _whole_scale(dtype, scale)


def _float_scale(dtype: DType, scale: Scale) -> Any:
    factor = math.ldexp(scale, 0)  # float() would also accept a str
    compute = np.float64 if dtype.name == "float64" else np.float32
    with np.errstate(over="ignore", under="ignore"):
        rounded = compute(factor)
    if not math.isfinite(rounded):
        raise ConfigError("scale must be finite", scale=scale, dtype=dtype.name)
    return rounded


def _whole_scale(dtype: DType, scale: Scale) -> Any:
    limits = np.iinfo(dtype.numpy)
    whole = int(scale) if math.isfinite(scale) else limits.max + 1
    if whole != scale or not limits.min <= whole <= limits.max:
        raise ConfigError(
            "scale must be a whole number of the region's type", scale=scale, dtype=dtype.name
        )
    return dtype.numpy.type(whole)


def scatter_operand(places: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the operand of a scatter kernel, as bytes. All rows lie in one stripe.

        count u64 | row_nbytes u64 | place i64[count] | values u8[count, row_nbytes]

    A row across two stripes is sent as two ordinary changes instead.

    Args:
        places: ``i64[count]``, index of each row from the first byte of the commit's range.
        values: ``[count, ...]`` of the region's dtype, C-contiguous.
    """
    count = places.size
    middle = SCATTER_HEADER_NBYTES + count * PLACE_NBYTES
    operand = np.empty(middle + values.nbytes, np.uint8)
    operand[:SCATTER_HEADER_NBYTES].view(np.uint64)[:] = (count, values.nbytes // max(count, 1))
    operand[SCATTER_HEADER_NBYTES:middle].view(np.int64)[:] = places
    operand[middle:] = values.reshape(-1).view(np.uint8)
    return operand


class OptimizerCode(IntEnum):
    """Number of an optimizer in journals and messages; never reused, and no kernel's number."""

    MOMENTUM = 64
    NESTEROV = 65
    ADAGRAD = 66
    ADAM = 67


class Optimizer(Struct, frozen=True):
    """One row of the table.

    Attributes:
        parameters: of a step, in order, each with its default; at most four. None: required.
        states: its sibling regions, in order, each with the setting in ``initial`` that is its
            first value; "": it begins as zeros.
        initial: the other settings, each with its default.
    """

    parameters: dict[str, float | None]
    states: dict[str, str]
    initial: dict[str, float] = {}


OPTIMIZERS: Final[dict[OptimizerCode, Optimizer]] = {
    OptimizerCode.MOMENTUM: Optimizer({"lr": None, "momentum": 0.9}, {"momentum": ""}),
    OptimizerCode.NESTEROV: Optimizer({"lr": None, "momentum": 0.9}, {"momentum": ""}),
    OptimizerCode.ADAGRAD: Optimizer(
        {"lr": None, "eps": 1e-10},
        {"squares": "initial_accumulator_value"},
        {"initial_accumulator_value": 0.0},
    ),
    OptimizerCode.ADAM: Optimizer(
        {"lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, {"mean": "", "squares": ""}
    ),
}


def check_parameters(code: OptimizerCode, parameters: Parameters) -> None:
    """Raise ConfigError unless the optimizer's parameters are complete, finite and in range."""
    names = [*OPTIMIZERS[code].parameters]
    if len(parameters) != len(names):
        raise ConfigError("an optimizer needs its parameters", optimizer=code.name, names=names)
    for name, value in zip(names, parameters, strict=True):
        below = 1.0 if name.startswith(("momentum", "beta")) else math.inf
        if not 0 <= value < below:
            raise ConfigError("out of range", optimizer=code.name, **{name: value})
