"""The directory of a box: regions by their names, and what is to be left before it closes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from smbox import head
from smbox.address import check_layout
from smbox.deadline import answer_s, deadline_given
from smbox.errors import (
    ConfigError,
    LayoutMismatchError,
    RegionFreedError,
    RegionNotFoundError,
)
from smbox.memory.layout import Consistency, RegionKind
from smbox.paths import creating
from smbox.paths.pair import PathPair
from smbox.paths.work import CreateRequest, RegionInfo
from smbox.region import Region
from smbox.sync import Counter


class Directory:
    """The part of a box that runs and locks build on; one over several nodes has its own ways.

    Args:
        paths: to the node, shared with the box.
    """

    def __init__(self, paths: PathPair) -> None:
        self._paths = paths
        self._at_close: dict[Callable[[], None], None] = {}

    def create(
        self,
        name: str,
        shape: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        init: Any = None,
        *,
        exist_ok: bool = False,
        consistency: str = "stripe",
        layout: str = "single",
        timeout_s: float | None = None,
    ) -> Region:
        """Create a region; of two that race for a name, one wins, whole.

        Args:
            name: 1 to 200 bytes of printable UTF-8, unique among the node's arrays. Names
                with # and 16 hexadecimal digits at the end, or before the last /, are of parts
                of striped regions.
            shape: row-major; None: the shape of ``init``.
            dtype: a name or numpy dtype; None: that of ``init``, else float32.
            init: the first contents: a number for all elements, or an array; None: zeros.
            exist_ok: a region of this name, shape, dtype and consistency is the answer, not
                an error; its contents stay.
            consistency: "stripe": each stripe changes at once; "none": no locks, no journal,
                atomic by word only.
            layout: "single", or "striped" over all nodes of the box: one part of consecutive
                rows on each, made one after the other. On one node the same.
            timeout_s: seconds to wait for the node; None: the timeout of the box, begun anew as
                long as some of ``init`` gets through.

        Raises:
            ConfigError, LimitError: no region can be so.
            RegionExistsError: the name is taken.
            LayoutMismatchError: with ``exist_ok``, by another shape, dtype, consistency or
                layout; or init does not fit.
            OutOfMemoryError: no room; nothing is left of it.
            RequestTimeoutError: not done in time, and maybe done: call again by ``exist_ok``.
        """
        check_layout(layout)
        request, values = creating.describe(name, shape, dtype, init, consistency)
        head.check_no_part_name(name)
        request = replace(request, exist_ok=exist_ok)
        return self._create(request, values, layout, deadline_given(timeout_s))

    def _create(
        self, request: CreateRequest, values: Any, _layout: str, deadline_s: float | None
    ) -> Region:
        return create(self._paths, request, values, deadline_s)

    def attach(self, name: str, *, timeout_s: float | None = 30.0) -> Region:
        """Find a region by name; waits until somebody has created it.

        Args:
            name: its.
            timeout_s: seconds to wait for the region, and for the node; None: not for the
                region, and for the node as long as the box does.

        Raises:
            RegionNotFoundError: nobody did, within ``timeout_s``.
            ConfigError: it is striped over several nodes: connect to all of them.
            RegionFreedError: it is striped, and a part was freed by itself.
            PeerLostError: it is striped, and a part lay in a memory that is gone.
        """
        return self._attach(name, deadline_given(timeout_s))

    def _attach(self, name: str, deadline_s: float | None) -> Region:
        return attach(self._paths, name, deadline_s)

    def regions(self) -> list[RegionInfo]:
        """List all live regions, counters and barriers of the node, by address."""
        return self._paths.control().regions(self._paths.timeout_s)

    def free(self, region: str | Region | Counter | RegionInfo) -> None:
        """Free a region, with all its parts; whoever uses it is told by RegionFreedError.

        Args:
            region: the region (no slice), or its name; a counter; or what ``regions()`` told.

        Raises:
            ConfigError: a slice, which is a part of a region, or the name of a striped region
                (connect to all its nodes); nothing changed.
            RegionNotFoundError: no region has this name.
            RegionFreedError: it was freed already.
            PeerLostError, RequestTimeoutError: of a striped region, a node is lost; the name is
                free and the parts on other nodes are gone all the same, if the head could be
                freed.
        """
        if isinstance(region, str):
            info = self._find(region)
        elif isinstance(region, Region | Counter):
            info = region.info
            if isinstance(region, Region) and region.nbytes != info.nbytes:
                raise ConfigError("free takes a whole region, not a slice", region=info.name)
        elif isinstance(region, RegionInfo):
            info = region
        else:
            raise TypeError(f"free takes a region or its name, not {type(region).__name__}")
        self._free(info)

    def _find(self, name: str) -> RegionInfo:
        return attach(self._paths, name, None).info

    def _free(self, info: RegionInfo) -> None:
        self._paths.control(info).free(info.address, self._paths.timeout_s)

    def before_close(self, end: Callable[[], None]) -> None:
        """Have something called once when the box closes, as long as its verbs still work."""
        self._at_close[end] = None

    def not_before_close(self, end: Callable[[], None]) -> None:
        """Have it called no more. Idempotent."""
        self._at_close.pop(end, None)

    def leave(self) -> None:
        """Call what is to be called before the box closes."""
        while self._at_close:
            self._at_close.popitem()[0]()


def attach(paths: PathPair, name: str, deadline_s: float | None) -> Region:
    """Find a region, waiting for it; None: look once, with the timeout of the box.

    Raises:
        RegionNotFoundError: there was none, by then.
        ConfigError: it is striped over several nodes, and this is one of them.
    """
    info = find(paths, name, deadline_s)
    found = head_of(paths, info, deadline_s)
    if found is not None:
        raise ConfigError(
            "this region is striped over several nodes: connect to all of them, for example"
            " by SMBOX_ADDRESS=tcp://a:7070,tcp://b:7070",
            region=name,
            nodes=[part.node for part in found.parts],
        )
    return Region(paths, info)


def find(paths: PathPair, name: str, deadline_s: float | None) -> RegionInfo:
    """Find an array by name, be it a head, as ``attach``; RegionNotFoundError."""
    if deadline_s is None:
        return paths.control().find(name, RegionKind.ARRAY, paths.timeout_s)
    return paths.control().attach(name, RegionKind.ARRAY, deadline_s)


def head_of(paths: PathPair, info: RegionInfo, deadline_s: float | None) -> head.Head | None:
    """Read what may be the head of a striped region; None: an ordinary region."""
    region = Region(paths, info)
    return head.read(info, lambda nbytes: region[:nbytes].get(timeout_s=answer_s(deadline_s)))


def create(
    paths: PathPair,
    request: CreateRequest,
    values: NDArray[Any] | None,
    deadline_s: float | None,
) -> Region:
    """Create a region of one node, or find one of the same layout; see ``creating.create``.

    Raises:
        LayoutMismatchError: the region of this name has another layout, or is striped.
    """
    if not request.exist_ok:
        return Region(paths, creating.create(paths, request, values, deadline_s))
    try:
        info = creating.create(paths, request, values, deadline_s)
    except LayoutMismatchError:  # maybe of the head, which is no layout of the caller's
        with suppress(RegionNotFoundError, RegionFreedError):
            wait_s = paths.seconds(answer_s(deadline_s))
            info = paths.control().find(request.name, request.kind, wait_s)
            _check_single(paths, info, request, deadline_s)
        raise
    _check_single(paths, info, request, deadline_s)
    return Region(paths, info)


def _check_single(
    paths: PathPair, info: RegionInfo, wanted: CreateRequest, deadline_s: float | None
) -> None:
    """Raise LayoutMismatchError if a region that was found is the head of a striped one."""
    found = head_of(paths, info, deadline_s)
    if found is not None:
        raise LayoutMismatchError(
            "a region of this name is striped over several nodes: take another name, or"
            " layout='striped' on a box over all of them",
            name=info.name,
            layout=found.layout,
            shape=list(found.shape),
            dtype=found.dtype,
            consistency=Consistency.NAMES[found.consistency],
            wanted_layout="single",
            wanted_shape=list(wanted.shape),
            wanted_dtype=wanted.dtype.name,
            wanted_consistency=Consistency.NAMES[wanted.consistency],
        )
