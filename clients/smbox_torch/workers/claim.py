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

__all__ = ["claim", "claim_of"]

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
        claim_of(name), shape=record.shape, dtype="uint8", init=record, exist_ok=True
    )
    found = region.get().tobytes().rstrip(b"\0").decode(errors="replace")
    if found != ours:
        raise _mismatch(found, ours, name)


def claim_of(name: str) -> str:
    """Return the name of the region with the claim."""
    return f"{name}.algorithm"


def _mismatch(found: str, ours: str, name: str) -> ConfigError | LayoutMismatchError:
    """Return the error for a claim that differs from the first one."""
    cure = (
        "choose another name, or remove each region of the old run by smbox rm: their names"
        f" begin with {name!r} and a dot"
    )
    (algorithm, layout, *known), (mine, shape, *given) = found.split(" "), ours.split(" ")
    if algorithm != mine:
        return ConfigError(
            f"another algorithm uses this name: {cure}", name=name, used_by=algorithm
        )
    if layout != shape:
        return LayoutMismatchError(
            f"a model of other shapes or dtypes uses this name: {cure}", name=name
        )
    theirs, here = (dict(pair.split("=", 1) for pair in pairs) for pairs in (known, given))
    differing = [key for key in sorted(theirs.keys() & here.keys()) if theirs[key] != here[key]]
    shown = ", ".join(f"{key} {here[key]} here and {theirs[key]}" for key in differing)
    return ConfigError(
        f"all workers of a run must have the same settings, but there is {shown} in the run:"
        f" correct it, or {cure}",
        name=name,
    )
