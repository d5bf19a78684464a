"""Directory: the base class of boxes, which creates, finds and frees regions by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from msgspec.structs import replace

from smbox import head
from smbox.deadline import deadline_given, optional_timeout_s
from smbox.errors import (
    ConfigError,
    LayoutMismatchError,
    RegionFreedError,
    RegionNotFoundError,
)
from smbox.memory.layout import RegionKind
from smbox.paths import creating
from smbox.paths.pair import PathPair
from smbox.paths.requests import CreateRequest, RegionInfo
from smbox.region import Region
from smbox.sync import Counter

LAYOUTS: Final = ("single", "striped")


class Directory:
    """The base class of boxes; runs and locks use only these methods.

    A box over several nodes overrides some of them.

    Args:
        paths: paths to the node, shared with all objects of the box.
    """

    def __init__(self, paths: PathPair) -> None:
        self._paths = paths
        self._at_close: dict[object, tuple[int, Callable[[], None]]] = {}
        self._closing_in = 0  # id of the process in which a thread closes the box

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
        """Create a region and fill it; other clients find it only once it is complete.

        If several clients create the same name, one of them succeeds.

        Args:
            name: 1 to 200 bytes of printable UTF-8, unique among the node's arrays. Names with
                # and 16 hexadecimal digits at the end, or before the last /, are reserved for
                parts of striped regions.
            shape: row-major shape; None: the shape of ``init``.
            dtype: a name or numpy dtype; None: the dtype of ``init``, else float32.
            init: the first contents: a number for all elements, or an array; None: zeros.
            exist_ok: if the region exists with this shape, dtype, consistency and layout,
                return it unchanged instead of raising RegionExistsError.
            consistency: "stripe": each change of a stripe is atomic; "none": no locks and no
                journal, atomic by word only.
            layout: "single": on one node; "striped": one part of consecutive rows on each node
                of the box, created one after the other. Both are the same on one node.
            timeout_s: seconds to wait for the node; None: the timeout of the box, which
                restarts as long as the node makes the region or ``init`` is transferred.

        Raises:
            ConfigError, LimitError: an argument is invalid; nothing was created.
            RegionExistsError: the name is taken.
            LayoutMismatchError: ``init`` does not fit; or with ``exist_ok``, the region exists
                with another shape, dtype, consistency or layout.
            OutOfMemoryError: the node has too little memory left; nothing was created.
            RequestTimeoutError: the node did not answer in time; the region may exist. Call
                again with ``exist_ok``.
        """
        if layout not in LAYOUTS:
            raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}", layout=layout)
        request, values = creating.describe(name, shape, dtype, init, consistency)
        head.check_no_part_name(name)
        request = replace(request, exist_ok=exist_ok)
        return self._create(request, values, layout, deadline_given(timeout_s))

    def _create(
        self, request: CreateRequest, values: Any, _layout: str, deadline_s: float | None
    ) -> Region:
        """Create a region on the node of its name; raises as ``create``."""
        with self._at_name(request.name) as paths:
            try:
                info = creating.create(paths, request, values, deadline_s)
            except LayoutMismatchError:
                # If the region is a head, an error about the striped region is more helpful.
                with suppress(RegionNotFoundError, RegionFreedError):
                    wait_s = paths.request_s(deadline_s)
                    info = paths.control().find(request.name, request.kind, wait_s)
                    head.check_single(head_of(paths, info, deadline_s), request)
                raise
            if request.exist_ok:
                head.check_single(head_of(paths, info, deadline_s), request)
            return Region(paths, info)

    def attach(self, name: str, *, timeout_s: float | None = 30.0) -> Region:
        """Return the region ``name``; wait until it is created.

        Args:
            name: name of the region.
            timeout_s: seconds to wait for the region and the node; None: do not wait for the
                region, and wait for the node as long as the timeout of the box.

        Raises:
            RegionNotFoundError: no client created the region within ``timeout_s``.
            ConfigError: the region is striped over several nodes: connect to all of them.
            RegionFreedError: the region is striped, and one of its parts was freed.
            PeerLostError: the region is striped, and the memory of a part no longer exists.
        """
        return self._attach(name, deadline_given(timeout_s))

    def _attach(self, name: str, deadline_s: float | None) -> Region:
        return Region(self._paths, self._find(name, deadline_s))

    def regions(self) -> list[RegionInfo]:
        """Return all regions, counters and barriers of the node, in order of address."""
        return self._paths.control().regions(self._paths.timeout_s)

    def free(self, region: str | Region | Counter | RegionInfo) -> None:
        """Free a region with all its parts; later uses of it raise RegionFreedError.

        Args:
            region: a region (not a slice) or its name; a counter; an entry of ``regions()``.

        Raises:
            ConfigError: ``region`` is a slice; or the name of a striped region, and the box is
                not connected to all its nodes; nothing changed.
            RegionNotFoundError: no region has this name.
            RegionFreedError: the region was freed before.
            PeerLostError, RequestTimeoutError: the region is striped, and a node is lost. If
                the head could be freed, the name is free, and so are the parts on other nodes.
                The lost node's part may stay: free the region (not its name) again.
            TypeError: ``region`` has another type; nothing changed.
        """
        if isinstance(region, str):
            info = self._find(region, None)
        elif isinstance(region, Region | Counter):
            info = region.info
            if isinstance(region, Region) and region.nbytes != info.nbytes:
                raise ConfigError("free takes an entire region, not a slice", region=info.name)
        elif isinstance(region, RegionInfo):
            info = region
        else:
            raise TypeError(f"free takes a region or its name, not {type(region).__name__}")
        self._free(info)

    def _find(self, name: str, deadline_s: float | None) -> RegionInfo:
        """Return a region; raises as ``attach``."""
        info = find(self._paths, name, deadline_s)
        head.check_one_node(head_of(self._paths, info, deadline_s), name)
        return info

    def _free(self, info: RegionInfo) -> None:
        self._paths.control(info).free(info.address, self._paths.timeout_s)

    def _at_name(self, name: str) -> AbstractContextManager[PathPair]:  # noqa: ARG002
        """Return the paths to the node of a name; errors of the block name the node."""
        return nullcontext(self._paths)

    def _at_address(self, address: int) -> AbstractContextManager[PathPair]:  # noqa: ARG002
        """Return the paths to the node of an address; errors of the block name the node."""
        return nullcontext(self._paths)

    def before_close(self, key: object, end: Callable[[], None]) -> None:
        """Register a function that runs when the box closes, while verbs still work.

        It may run once in each thread that closes the box, and runs now if one does already.
        It does not run in a forked child.
        """
        self._at_close[key] = os.getpid(), end
        if self._closing_in == os.getpid():  # ``leave`` may have looked before
            end()

    def not_before_close(self, key: object) -> None:
        """Remove a function registered by ``before_close``, after its work. Idempotent."""
        self._at_close.pop(key, None)

    def leave(self) -> None:
        """Call and remove all functions registered by ``before_close``."""
        self._closing_in = os.getpid()
        while ends := [*self._at_close.copy().items()]:  # a copy: others may remove some
            key, (owner, end) = ends[-1]
            try:
                if owner == os.getpid():
                    end()
            finally:  # not before: another thread that closes the box must not overtake it
                self.not_before_close(key)


def find(paths: PathPair, name: str, deadline_s: float | None) -> RegionInfo:
    """Return the array with a name, which may be a head.

    Args:
        paths: paths to the node of the name.
        name: name of the array.
        deadline_s: wait until then for the array to be created; None: do not wait for it.

    Raises:
        RegionNotFoundError: no array has this name.
    """
    if deadline_s is None:
        return paths.control().find(name, RegionKind.ARRAY, paths.timeout_s)
    return paths.control().attach(name, RegionKind.ARRAY, deadline_s)


def head_of(paths: PathPair, info: RegionInfo, deadline_s: float | None) -> head.Head | None:
    """Return the decoded head if the array ``info`` is the head of a striped region."""
    region = Region(paths, info)
    return head.read(
        info, lambda nbytes: region[:nbytes].get(timeout_s=optional_timeout_s(deadline_s))
    )
