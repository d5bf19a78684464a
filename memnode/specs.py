"""What a CREATE must satisfy before memory is taken. Pure: values in, errors out.

Every function raises the error that the client will see; nothing has changed then.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from smbox import dtypes
from smbox.dtypes import DType
from smbox.errors import ConfigError
from smbox.memory.kernels import BarrierWord
from smbox.memory.layout import STRIPE_NBYTES, RegionKind
from smbox.memory.region_header import RegionSpec, check_consistency, check_limits
from smbox.wire.messages import Create

KINDS: Final = frozenset({RegionKind.ARRAY, RegionKind.COUNTER, RegionKind.BARRIER})


def spec_of(create: Create) -> RegionSpec:
    """Return what a CREATE asks for.

    Raises:
        ConfigError: no such element type, kind or consistency, or a counter or barrier of
            another layout.
        LimitError: the name or the size is beyond every limit.
    """
    spec = RegionSpec(
        name=create.name,
        dtype=dtypes.by_name(create.dtype),
        shape=tuple(create.shape),
        kind=create.kind,
        consistency=create.consistency,
        token=int.from_bytes(create.token, "little"),
    )
    check_limits(spec)
    check_consistency(spec)
    if spec.kind not in KINDS:
        raise ConfigError("no such kind of region", kind=spec.kind)
    _check_kind(spec)
    return spec


def _check_kind(spec: RegionSpec) -> None:
    if spec.kind == RegionKind.COUNTER and (spec.dtype.name, spec.size) != ("int64", 1):
        raise ConfigError("a counter is one int64", dtype=spec.dtype.name, shape=spec.shape)
    if spec.kind == RegionKind.BARRIER and (
        spec.dtype.name != "uint64"
        or spec.size <= BarrierWord.MEMBERS
        or spec.nbytes > STRIPE_NBYTES
    ):
        raise ConfigError(
            "a barrier is uint64: generation, arrived, parties, members",
            dtype=spec.dtype.name,
            shape=spec.shape,
        )


def check_init(dtype: DType, init: float | None) -> None:
    """Check that ``init`` is a value that elements of ``dtype`` can hold.

    Raises:
        ConfigError: it is not; floats may be rounded, whole numbers may not.
    """
    if init is None or dtype.kind == "float":
        return
    low, high = 0, 1
    if dtype.kind != "bool":
        limits = np.iinfo(dtype.numpy)
        low, high = int(limits.min), int(limits.max)
    if not math.isfinite(init) or int(init) != init or not low <= init <= high:
        raise ConfigError("init is no value of this type", init=init, dtype=dtype.name)
