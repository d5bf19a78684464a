"""Which algorithm and which model a run's name belongs to, so that no other uses its regions.

A region ``NAME.algorithm`` of 64 bytes holds both as text; its first contents stay.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.naming import check_prefix
from smbox_torch.boxes import BoxLike, check_box

__all__ = ["claim"]

RECORD_NBYTES: Final = 64


def claim(box: BoxLike, name: str, algorithm: str, tensors: Sequence[torch.Tensor]) -> None:
    """Note whose a run's name is, or find that it is ours already.

    Args:
        box: the memory.
        name: of the run.
        algorithm: which uses its regions.
        tensors: parameters, in the order of the optimizer.

    Raises:
        TypeError, LimitError, ConfigError: this is no box, no run can have the name, or another
            algorithm uses it; nothing was changed.
        LayoutMismatchError: the same one with another model; nothing was changed.
    """
    check_box(box)
    check_prefix(name)
    layout = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    ours = f"{algorithm} {zlib.crc32(repr(layout).encode()):08x}"
    record = np.frombuffer(ours.encode().ljust(RECORD_NBYTES, b"\0"), np.uint8)
    region = box.create(
        f"{name}.algorithm", shape=record.shape, dtype="uint8", init=record, exist_ok=True
    )
    found = region.get().tobytes().rstrip(b"\0").decode(errors="replace")
    if found == ours:
        return
    cure = f"choose another, or remove the old run's regions ({name}.algorithm too) by smbox rm"
    if found.split(" ")[0] != algorithm:
        raise ConfigError(
            f"another algorithm uses this name: {cure}", name=name, used_by=found.split(" ")[0]
        )
    raise LayoutMismatchError(
        f"a model of other shapes or dtypes uses this name: {cure}", name=name
    )
