"""Finding a region by its name: a region of one node, and no head of a striped one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from smbox import head
from smbox.deadline import answer_s
from smbox.errors import (
    ConfigError,
    LayoutMismatchError,
    RegionFreedError,
    RegionNotFoundError,
)
from smbox.memory.layout import Consistency, RegionKind
from smbox.paths import creating
from smbox.paths.pair import PathPair
from smbox.paths.work import CreateRequest
from smbox.region import Region


def attach(paths: PathPair, name: str, deadline_s: float | None) -> Region:
    """Find a region, waiting for it; None: look once, with the timeout of the box.

    Raises:
        RegionNotFoundError: there was none, by then.
        ConfigError: it is striped over several nodes, and this is one of them.
    """
    if deadline_s is None:
        info = paths.control().find(name, RegionKind.ARRAY, paths.timeout_s)
    else:
        info = paths.control().attach(name, RegionKind.ARRAY, deadline_s)
    region = Region(paths, info)
    found = _head_of(region, deadline_s)
    if found is not None:
        raise ConfigError(
            "this region is striped over several nodes: connect to all of them, for example"
            " by SMBOX_ADDRESS=tcp://a:7070,tcp://b:7070",
            region=name,
            nodes=[part.node for part in found.parts],
        )
    return region


def find_or_create(
    paths: PathPair,
    request: CreateRequest,
    values: NDArray[Any] | None,
    deadline_s: float | None,
) -> Region:
    """Create a region of one node, or find one of the same layout; see ``creating.create``.

    Raises:
        LayoutMismatchError: the region of this name has another layout, or is striped.
    """
    try:
        region = Region(paths, creating.create(paths, request, values, deadline_s))
    except LayoutMismatchError:  # maybe of the head, which is no layout of the caller's
        with suppress(RegionNotFoundError, RegionFreedError):
            wait_s = paths.seconds(answer_s(deadline_s))
            info = paths.control().find(request.name, request.kind, wait_s)
            _check_single(Region(paths, info), request, deadline_s)
        raise
    _check_single(region, request, deadline_s)
    return region


def _check_single(region: Region, wanted: CreateRequest, deadline_s: float | None) -> None:
    """Raise LayoutMismatchError if a region that was found is the head of a striped one."""
    found = _head_of(region, deadline_s)
    if found is not None:
        raise LayoutMismatchError(
            "a region of this name is striped over several nodes: take another name, or"
            " layout='striped' on a box over all of them",
            name=region.name,
            layout=found.layout,
            shape=list(found.shape),
            dtype=found.dtype,
            consistency=Consistency.NAMES[found.consistency],
            wanted_layout="single",
            wanted_shape=list(wanted.shape),
            wanted_dtype=wanted.dtype.name,
            wanted_consistency=Consistency.NAMES[wanted.consistency],
        )


def _head_of(region: Region, deadline_s: float | None) -> head.Head | None:
    return head.read(
        region.info, lambda nbytes: region[:nbytes].get(timeout_s=answer_s(deadline_s))
    )
