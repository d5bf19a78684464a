"""The order of the parameters in an optimizer, which is that of the center's elements.

Workers whose optimizers have the same parameters in another order, as after a detour through a
``set``, would exchange each parameter with another one of the same shape.
"""

from __future__ import annotations

import zlib

import torch

from smbox_torch.model.matching import bare, names_of

__all__ = ["order_of"]


def order_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> str | None:
    """Return checksums of the sorted names and of their order: two hexadecimal numbers.

    Args:
        optimizer: has the parameters.
        model: names them, or None; None is returned if the name of one is unknown.
    """
    names = names_of(optimizer, model)
    ids = dict.fromkeys(id(p) for group in optimizer.param_groups for p in group["params"])
    known = [bare(names[each][0]) for each in ids if names.get(each)]
    if len(known) < len(ids):
        return None
    sums = (zlib.crc32("\n".join(each).encode()) for each in (sorted(known), known))
    return ".".join(f"{each:08x}" for each in sums)
