"""Changes of a lock-free region (consistency "none"): Hogwild, Niu et al. 2011.

No lock, no journal: atomic by word only. Two writers may lose each other's update of an
element, a kill in the middle leaves the range half changed, and a version counts roughly.
compiled_unlocked.py does the same for many stripes at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox.memory.change import Change
from smbox.memory.kernels import run_kernel, scale_of
from smbox.memory.layout import Stripe
from smbox.memory.mapped import MappedRegion, Piece


def change_unlocked(
    region: MappedRegion, piece: Piece, change: Change, old: NDArray[np.uint8] | None = None
) -> None:
    """Change the bytes of ``piece`` in place, without lock or journal.

    Args:
        region: a region of consistency "none".
        piece: the bytes to change.
        change: the kernel with its operand.
        old: ``u8[limit - first]`` that receives what was there, if wanted.

    Raises:
        RegionFreedError: the region was freed; nothing changed.
    """
    region.check_usable()
    data: NDArray[Any] = region.typed(piece.first, piece.limit)
    if old is not None:
        np.copyto(old, region.data[piece.first : piece.limit])
    scale = scale_of(change.kernel, region.spec.dtype, change.scale)
    source = change.source.reshape(-1).view(data.dtype)
    run_kernel(change.kernel, data, source, scale, change.delta)
    region.table[piece.stripe, Stripe.COUNT] += 1
