"""One pull of a publication: version, tensors, deadline and target."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

from smbox import (
    Box,
    ConfigError,
    LayoutMismatchError,
    Region,
    RequestTimeoutError,
)
from smbox.deadline import check_seconds
from smbox_torch.checks import whole
from smbox_torch.publishing.publication import (
    Entry,
    Layout,
    Source,
    has_no_memory,
    has_no_shape,
    identity,
    state_of,
)

__all__ = ["Pull"]

QUIET_S: Final = 0.6
"""Time without data after which a read ends that continues after the deadline of its pull."""

OPEN_S: Final = 3.0
"""Longest try to open a region: a pull that is cancelled ends after it."""

SILENT: Final = "the memory did not answer in time"


class Pull:
    """One pull: the version and tensors to read, the deadline and the target.

    Attributes:
        version: the exact version to read; None: the newest.
        at_least: the lowest version that satisfies the pull.

    Args: those of ``Subscriber.pull``.

    Raises:
        ConfigError: a version is out of range, ``version`` and ``newer_than`` are both given,
            or the timeout is not valid.
        TypeError: a version is not an integer.
    """

    def __init__(
        self,
        into: Source | None,
        newer_than: int,
        timeout_s: float,
        names: Iterable[str] | None,
        version: int | None,
    ) -> None:
        self.version = None if version is None else whole("version", version)
        newer_than = whole("newer_than", newer_than, least=0)
        if self.version is not None and newer_than:
            raise ConfigError(
                "pass version= or newer_than=, not both",
                version=version,
                newer_than=newer_than,
            )
        if isinstance(names, str):
            raise ConfigError("names must be a list of names, not one name", names=names)
        self.at_least = newer_than + 1 if self.version is None else self.version
        self._into = None if into is None else state_of(into)
        self._names = None if names is None else tuple(names)
        self._timeout_s = check_seconds(timeout_s)
        self._deadline_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds until the deadline."""
        return self._deadline_s - time.monotonic()

    def wait_s(self, poll_s: float) -> float:
        """Return the seconds to wait before the next check: until the deadline, or less."""
        return max(0.0, min(self.left_s(), poll_s))

    def cancel(self) -> None:
        """Set the deadline to the past, so that the pull ends."""
        self._deadline_s = -math.inf

    def timeout(self, message: str, **facts: object) -> RequestTimeoutError:
        """Return the error for a pull that timed out."""
        return RequestTimeoutError(
            message,
            op="pull",
            at_least=self.at_least,
            timeout_s=self._timeout_s,
            outcome="none",
            **facts,
        )

    def open(self, box: Box, name: str) -> Region:
        """Return a region; do not wait until it exists.

        Raises:
            RegionNotFoundError, RegionFreedError: it does not exist.
            RequestTimeoutError: the memory did not answer within the time of the pull.
        """
        try_s = 0.0
        while True:
            try:  # attach waits as long for the region: begin with short times
                return box.attach(name, timeout_s=try_s)
            except RequestTimeoutError as error:
                left_s = self.left_s()
                if left_s <= 0:
                    raise self.timeout(SILENT) from error
            try_s = min(2 * try_s + 1.0, OPEN_S, left_s)

    def read(self, region: Region, out: torch.Tensor | None = None) -> Any:
        """Return the contents of a region, in ``out`` if it is given.

        After the deadline it goes on as long as data arrives, at intervals of at most QUIET_S,
        or up to four times as long if earlier intervals were longer.

        Raises:
            RegionFreedError: the region was freed.
            RequestTimeoutError: the memory did not answer within the time of the pull. ``out``
                may be overwritten in part; nothing more is written to it.
        """
        handle = region.get_nb(out=out)
        quiet_s = QUIET_S
        try:
            while True:
                handle.timeout_s = min(quiet_s, max(QUIET_S, self.left_s()))
                try:
                    return handle.result()  # waits as long as data arrives at these intervals
                except RequestTimeoutError as error:
                    if self.left_s() <= 0:
                        raise self.timeout(SILENT, **handle.facts()) from error
                quiet_s = min(2 * quiet_s, 4 * QUIET_S)
        except BaseException:
            handle.cancel()
            raise

    def select(self, layout: Layout) -> dict[str, Entry]:
        """Return the entries to read, by name.

        Raises:
            LayoutMismatchError: some are not published, or they do not match the target.
        """
        published = layout.named()
        names = tuple(published) if self._names is None else self._names
        _check_names("the publication lacks tensors", names, published)
        chosen = {name: published[name] for name in names}
        if self._into is not None:
            _check_names("the target lacks tensors", names, self._into)
            if self._names is None:
                _check_names("the publication lacks tensors", self._into, published)
            for name, entry in chosen.items():
                _check_fit(entry, self._into[name])
        return chosen

    @torch.inference_mode()
    def copy_to_target(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors into the target, tied tensors once.

        In inference mode, because tensors created in it can be written only in it.

        Raises:
            LayoutMismatchError: a tied tensor of the target would receive different values.
        """
        if self._into is None:
            return
        chosen: dict[tuple[Any, ...], str] = {}
        for name, tensor in state.items():
            first = chosen.setdefault(identity(self._into[name]), name)
            if not _are_same(state[first], tensor):
                raise LayoutMismatchError(
                    "the target has one tensor for published ones with different values (tied"
                    " parameters): nothing was written",
                    entries=[first, name],
                )
        for name in chosen.values():
            self._into[name].copy_(state[name])


def _check_names(message: str, wanted: Iterable[str], present: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in present]
    if missing:
        raise LayoutMismatchError(
            f"{message}: nothing was written", missing=missing[:8], count=len(missing)
        )


def _check_fit(entry: Entry, target: Any) -> None:
    """Raise LayoutMismatchError unless a published tensor can be copied into a target."""
    fits = (
        isinstance(target, torch.Tensor)
        and not has_no_shape(target)
        and tuple(target.shape) == entry.shape
        and (target.dtype is entry.torch_dtype or _are_floats(target.dtype, entry.torch_dtype))
        and target.layout is torch.strided
        and target.device.type != "meta"
        and not has_no_memory(target)
        and not _overlaps_itself(target)
    )
    if not fits:
        raise LayoutMismatchError(
            "the target's tensor does not match the published one: nothing was written",
            entry=entry.name,
            shape=entry.shape,
            dtype=entry.dtype,
            target=_described(target),
        )


def _are_same(*tensors: torch.Tensor) -> bool:
    """Return whether contiguous tensors have one dtype and the same bytes."""
    a, b = (tensor.reshape(-1) for tensor in tensors)
    if a.data_ptr() == b.data_ptr():
        return True
    return a.dtype is b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _are_floats(*dtypes: torch.dtype) -> bool:
    return all(dtype.is_floating_point for dtype in dtypes)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether elements may share memory: a stride is at most the extent of smaller ones.

    Strides that interleave without overlap, as 2 and 3 may, also count as overlapping.
    """
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _described(target: Any) -> str:
    if not isinstance(target, torch.Tensor):
        return type(target).__name__
    if has_no_shape(target):
        return f"{type(target).__name__} without a shape"
    kind = type(target).__name__
    return f"{kind} {tuple(target.shape)} {target.dtype} {target.layout} on {target.device}"
