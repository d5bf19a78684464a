"""The claim on the name of a run: one algorithm, model and set of settings for each name.

A region ``NAME.algorithm`` of 512 bytes holds them as text. Its first contents never change.

    EASGD 1f0c9a3e statistics=2
    algorithm, checksum of shapes and dtypes, settings that all workers must share
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.head import check_prefix
from smbox_torch.boxes import BoxLike, check_box

__all__ = ["claim"]

RECORD_NBYTES: Final = 512
NOTHING: Final[Mapping[str, object]] = {}


def claim(
    box: BoxLike,
    name: str,
    algorithm: str,
    tensors: Sequence[torch.Tensor],
    settings: Mapping[str, object] = NOTHING,
) -> None:
    """Claim the name of a run, or check that an earlier claim has the same contents.

    Args:
        box: the memory.
        name: name of the run.
        algorithm: algorithm that uses the run's regions.
        tensors: parameters, in the order of the optimizer.
        settings: settings that all workers must share: numbers, and words without spaces.

    Raises:
        TypeError, LimitError, ConfigError: ``box`` is not a box, the name is not valid, or
            another algorithm or other settings use it; nothing was changed.
        LayoutMismatchError: the same algorithm uses the name with another model; nothing was
            changed.
    """
    check_box(box)
    check_prefix(name)
    layout = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    pairs = [f"{key}={value}" for key, value in sorted(settings.items())]
    ours = " ".join((algorithm, f"{zlib.crc32(repr(layout).encode()):08x}", *pairs))
    assert len(ours) <= RECORD_NBYTES, "settings are few and short"
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
    if found.split(" ")[1:2] != ours.split(" ")[1:2]:
        raise LayoutMismatchError(
            f"a model of other shapes or dtypes uses this name: {cure}", name=name
        )
    known = dict(each.split("=", 1) for each in found.split(" ")[2:])
    given = dict(each.split("=", 1) for each in pairs)
    differing = [key for key in sorted(known.keys() & given.keys()) if known[key] != given[key]]
    shown = ", ".join(f"{key} {given[key]} here and {known[key]}" for key in differing)
    raise ConfigError(
        f"all workers of a run must have the same settings, but there is {shown} in the run:"
        f" correct it, or {cure}",
        name=name,
    )
