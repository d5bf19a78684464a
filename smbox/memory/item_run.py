"""The fast way to many small changes of one region: each is a commit, all are one call."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.memory import accel
from smbox.memory.change import Receipt
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.mapped import MappedRegion
from smbox.memory.modes import Mode, mode_of

_NUMPY: Final = int(Mode.NUMPY)


def commit_items(
    writer: Writer,
    region: MappedRegion,
    kernel: KernelCode,
    orders: NDArray[np.uint64],
    source_at: int,
    source: NDArray[np.uint8],
    receipt: Receipt,
    *,
    needs_all: bool = False,
) -> int:
    """Commit changes one by one, up to the first obstacle, or one that is not like the first.

    Args:
        writer: the calling thread's.
        region: of consistency "stripe"; others are left alone.
        kernel: of all changes: REPLACE or SUM.
        orders: ``u64[items, 4]``, as ``wire.batch`` has its items: in the low 16 bits of the
            first word what alike changes have in common, in its upper half the operand's bytes;
            the global address; as many bytes; the scale as an int64, or a float64 for floats.
        source_at: where in ``source`` the first operand begins; the others follow it.
        source: bytes of all operands, ``u8``.
        receipt: of the first change, the next number is the next one's; without a ring.
        needs_all: do nothing unless all are alike, and end where the source does.

    Returns:
        How many are committed; the others are untouched.
    """
    engine, dtype = accel.loaded(), region.spec.dtype
    mode = mode_of(kernel, dtype)
    if engine is None or engine.commit_items is None or mode == _NUMPY:
        return 0
    return engine.commit_items(
        region.header,
        region.table,
        region.data,
        writer.words,
        writer.old,
        writer.locks.fd,
        mode,
        int(kernel),
        dtype.itemsize,
        orders,
        orders.view(np.float64),
        source_at,
        source,
        int(needs_all),
        receipt.row.words,
        receipt.row.index + 1,
        receipt.number,
    )
