"""Wanted: what a pull asks of a publication, and where it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from smbox import ConfigError, LayoutMismatchError, RequestTimeoutError
from smbox.deadline import check_seconds
from smbox_torch.checks import whole
from smbox_torch.publishing.publication import Entry, Layout, Source, has_no_shape, state_of

__all__ = ["Wanted"]


class Wanted:
    """A pull: which version, which tensors of it, until when, and where they go.

    Attributes:
        version: exactly this one; None: the newest.
        at_least: the lowest version that will do.

    Args: those of ``Subscriber.pull``.

    Raises:
        ConfigError: there is no such version, they contradict each other, or nobody can wait
            so long.
        TypeError: a version is no whole number.
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
                "a pull is of one version, or of one newer than another",
                version=version,
                newer_than=newer_than,
            )
        if isinstance(names, str):
            raise ConfigError("names is a list of names, not one name", names=names)
        self.at_least = newer_than + 1 if self.version is None else self.version
        self._into = None if into is None else state_of(into)
        self._names = None if names is None else tuple(names)
        self._timeout_s = check_seconds(timeout_s)
        self._deadline_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds that are left to wait."""
        return self._deadline_s - time.monotonic()

    def give_up(self) -> None:
        """Let no time be left."""
        self._deadline_s = -math.inf

    def timeout(self, message: str) -> RequestTimeoutError:
        """Return the error of a pull that nothing came of in time."""
        return RequestTimeoutError(
            message,
            op="pull",
            at_least=self.at_least,
            timeout_s=self._timeout_s,
            outcome="none",
        )

    def choose(self, layout: Layout) -> dict[str, Entry]:
        """Return the entries that are wanted, by name.

        Raises:
            LayoutMismatchError: there are not all of them, or they do not fit the target.
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
    def fill(self, state: Mapping[str, torch.Tensor]) -> None:
        """Write tensors into the target, tied ones once.

        Tensors that were made in inference mode can be written in that mode only, others too.
        """
        if self._into is None:
            return
        filled = set()
        for name, tensor in state.items():
            target = self._into[name]
            pair = target.data_ptr(), tensor.data_ptr(), target.device
            if tensor.numel() and pair not in filled:
                target.copy_(tensor)
                filled.add(pair)


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
        and not _overlaps_itself(target)
    )
    if not fits:
        raise LayoutMismatchError(
            "a target does not fit what was published: nothing was written",
            entry=entry.name,
            shape=entry.shape,
            dtype=entry.dtype,
            target=_described(target),
        )


def _are_floats(*dtypes: torch.dtype) -> bool:
    return all(dtype.is_floating_point for dtype in dtypes)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Tell whether elements share memory: a step is no longer than all shorter ones together.

    (Steps that interleave without meeting, as 2 and 3 may, count as overlapping.)
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
    return f"{tuple(target.shape)} {target.dtype} {target.layout} on {target.device}"
