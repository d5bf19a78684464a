"""The order of the parameters in an optimizer, which is that of the center's elements.

Workers whose optimizers have the same parameters in another order, as after a detour through a
``set``, would exchange each parameter with another one of the same shape.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from smbox_torch.model.matching import Names, bare

__all__ = ["order_of"]


def order_of(tensors: Sequence[torch.Tensor], names: Names) -> str | None:
    """Return checksums of the sorted names and of their order: two hexadecimal numbers.

    Args:
        tensors: parameters, in the order of the optimizer, each once.
        names: their known names; None is returned if one is unknown.
    """
    known = [bare(names[id(each)][0]) for each in tensors if names.get(id(each))]
    if len(known) < len(tensors):
        return None
    sums = (zlib.crc32("\n".join(each).encode()) for each in (sorted(known), known))
    return ".".join(f"{each:08x}" for each in sums)
