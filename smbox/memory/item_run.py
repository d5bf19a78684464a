"""The fast way to many small changes of one region: each is a commit, all are one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.memory import accel
from smbox.memory.change import Receipt
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode, Scale
from smbox.memory.mapped import MappedRegion
from smbox.memory.modes import Mode, factors, mode_of

_NUMPY: Final = int(Mode.NUMPY)


class Place(NamedTuple):
    """A change within one stripe.

    Attributes:
        first: first byte of the region's data, at an element.
        limit: byte behind the last.
        ahead: where its operand begins in the source; it is as long as the range.
        scale: as ``Change.scale``.
    """

    first: int
    limit: int
    ahead: int
    scale: Scale


def commit_items(
    writer: Writer,
    region: MappedRegion,
    kernel: KernelCode,
    places: Sequence[Place],
    source: NDArray[np.uint8],
    receipt: Receipt,
) -> int:
    """Commit changes one by one, up to the first obstacle.

    Args:
        writer: the calling thread's.
        region: of consistency "stripe"; others are left alone.
        kernel: of all changes: REPLACE, SUM or ELASTIC.
        places: where they are.
        source: bytes of all operands.
        receipt: of the first change, the next number is the next one's; without a ring.

    Returns:
        How many are committed; the others are untouched.

    Raises:
        ConfigError: a scale does not fit; nothing changed.
    """
    engine, dtype = accel.loaded(), region.spec.dtype
    mode = mode_of(kernel, dtype)
    if engine is None or engine.commit_items is None or mode == _NUMPY:
        return 0
    scales = [factors(kernel, dtype, place.scale) for place in places]
    rows = [
        (first, limit, ahead, whole)
        for (first, limit, ahead, _), (_, whole) in zip(places, scales, strict=True)
    ]
    return engine.commit_items(
        region.header,
        region.table,
        region.data,
        writer.words,
        writer.old,
        writer.locks.fd,
        mode,
        int(kernel),
        np.array(rows, np.int64).reshape(-1, 4),
        np.array([scale for scale, _ in scales], np.float64),
        source,
        receipt.row.words,
        receipt.row.index + 1,
        receipt.number,
    )
