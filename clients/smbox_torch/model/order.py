"""The order of the parameters in an optimizer, which is that of the center's elements.

Workers whose optimizers have the same parameters in another order, as after a detour through a
``set``, would exchange each parameter with another one of the same shape.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike
from smbox_torch.model.matching import Names, bare

__all__ = ["check_order"]


def check_order(box: BoxLike, name: str, tensors: Sequence[torch.Tensor], names: Names) -> None:
    """Compare the order of the parameters' names with that of the first worker.

    The region ``NAME.order`` holds a checksum of the sorted names and one of their order.
    Parameters without names, and workers with other names, are not compared.

    Args:
        box: the memory.
        name: name of the run.
        tensors: parameters, in the order of the optimizer, each once.
        names: their known names.

    Raises:
        ConfigError: the names are the same in another order; nothing was changed.
    """
    known = [bare(names[id(each)][0]) for each in tensors if names.get(id(each))]
    if len(known) < max(2, len(tensors)):
        return
    sums = [zlib.crc32("\n".join(each).encode()) for each in (sorted(known), known)]
    mine = np.array(sums, np.int64)
    region = box.create(f"{name}.order", shape=2, dtype="int64", init=mine, exist_ok=True)
    first = region.get()
    if first[0] == mine[0] and first[1] != mine[1]:
        raise ConfigError(
            "the optimizer has the parameters of the first worker's in another order, and would"
            " exchange each with another one: build its groups in the order of"
            " model.parameters(), not of a set",
            name=name,
        )
