"""The claim on the name of a run: one algorithm, model and set of settings for each name.

A region ``NAME.algorithm`` of 512 bytes holds them as text. Its first contents never change.

    EASGD 1f0c9a3e 5d11b0c2.9e0b77a1 statistics=2
    algorithm, checksum of shapes and dtypes, order of the names, settings of all workers
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.head import check_prefix
from smbox_torch.boxes import BoxLike, check_box

__all__ = ["check_run_name", "claim", "claim_of", "is_other_order"]

RECORD_NBYTES: Final = 512
NOTHING: Final[Mapping[str, object]] = {}
UNKNOWN: Final = "-"

_PART: Final = re.compile(
    r"(?P<run>.+)\.(?P<part>average|buffers|gradients|gradient\d|velocity|ring|stop|members|met"
    r"|cluster\d+|group\d+|(state|topology)(\.[^.]+)?)",
    re.DOTALL,
)
"""Names of parts of a run, which have regions or members of their own, as a run has."""


def check_run_name(name: str) -> None:
    """Check the name of a run.

    Raises:
        TypeError, LimitError: the name is not valid.
        ConfigError: the name is not valid, or a run gives it to a part of itself.
    """
    check_prefix(name)
    found = _PART.fullmatch(name)
    if found is not None:
        raise ConfigError(
            f"names that end with .{found['part']} are reserved for a part of the run"
            f" {found['run']!r}: choose another name",
            name=name,
        )


def claim(
    box: BoxLike,
    name: str,
    algorithm: str,
    tensors: Sequence[torch.Tensor],
    settings: Mapping[str, object] = NOTHING,
    *,
    order: str | None = None,
) -> None:
    """Claim the name of a run, or check that an earlier claim has the same contents.

    Args:
        box: the memory.
        name: name of the run.
        algorithm: algorithm that uses the run's regions.
        tensors: parameters, in the order of the optimizer.
        settings: settings that all workers must share: numbers, and words without spaces.
        order: the parameters' names and their order, see ``order_of``; None: unknown.

    Raises:
        TypeError, LimitError, ConfigError: ``box`` is not a box, the name is not valid, see
            ``check_run_name``, or another algorithm, other settings or another order of the
            same names use it; nothing was changed.
        LayoutMismatchError: the same algorithm uses the name with another model; nothing was
            changed.
    """
    check_box(box)
    check_run_name(name)
    layout = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    pairs = [f"{key}={value}" for key, value in sorted(settings.items())]
    checksum = f"{zlib.crc32(repr(layout).encode()):08x}"
    ours = " ".join((algorithm, checksum, order or UNKNOWN, *pairs))
    assert len(ours) <= RECORD_NBYTES, "settings are few and short"
    record = np.frombuffer(ours.encode().ljust(RECORD_NBYTES, b"\0"), np.uint8)
    region = box.create(
        claim_of(name), shape=record.shape, dtype="uint8", init=record, exist_ok=True
    )
    found = region.get().tobytes().rstrip(b"\0").decode(errors="replace")
    problem = _mismatch(found, ours, name)
    if problem is not None:
        raise problem


def claim_of(name: str) -> str:
    """Return the name of the region with the claim."""
    return f"{name}.algorithm"


def _mismatch(found: str, ours: str, name: str) -> ConfigError | LayoutMismatchError | None:
    """Return the error for a claim that differs from the first one."""
    cure = (
        "choose another name, or remove each region of the old run by smbox rm: their names"
        f" begin with {name!r} and a dot"
    )
    algorithm, layout, order, *known = found.split(" ")
    mine, shape, turned, *given = ours.split(" ")
    if algorithm != mine:
        return ConfigError(
            f"another algorithm uses this name: {cure}", name=name, used_by=algorithm
        )
    if layout != shape:
        return LayoutMismatchError(
            f"a model of other shapes or dtypes uses this name: {cure}", name=name
        )
    if known == given:
        return _reordered(order, turned, name)
    theirs, here = (dict(pair.split("=", 1) for pair in pairs) for pairs in (known, given))
    differing = [key for key in sorted(theirs.keys() & here.keys()) if theirs[key] != here[key]]
    shown = ", ".join(f"{key} {here[key]} here and {theirs[key]}" for key in differing)
    return ConfigError(
        f"all workers of a run must have the same settings, but there is {shown} in the run:"
        f" correct it, or {cure}",
        name=name,
    )


def _reordered(order: str, turned: str, name: str) -> ConfigError | None:
    """Return the error for an order that differs from the first one; other names have none."""
    if not is_other_order(turned, order):
        return None
    return ConfigError(
        "this optimizer has the parameters in another order than the first worker's, and would"
        " exchange each with another one: build its groups in the order of model.parameters(),"
        " not of a set",
        name=name,
    )


def is_other_order(one: str | None, other: str | None) -> bool:
    """Return whether two orders, see ``order_of``, are known, differ, and have equal names."""
    if one is None or other is None or one == other:
        return False
    return one.partition(".")[0] == other.partition(".")[0]
