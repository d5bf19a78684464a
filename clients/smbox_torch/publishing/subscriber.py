"""Subscriber: pulls complete versions of published weights.

A version is first copied into the subscriber's memory. The copy is valid if the buffer names
the same version after the copy; else the newest version is copied. Only then is ``into``
written, so a module never holds parts of two versions. Without ``into`` the copy is the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

import numpy as np
import torch

from smbox import (
    Box,
    Region,
    RegionFreedError,
    RegionNotFoundError,
    RequestTimeoutError,
    StaleVersionError,
)
from smbox.deadline import deadline_of
from smbox.head import check_prefix
from smbox.mutex import Mutex
from smbox_torch.boxes import check_box
from smbox_torch.publishing import publication
from smbox_torch.publishing.publication import (
    HEAD_NBYTES,
    VERSION_NBYTES,
    Layout,
    Newest,
    Source,
)
from smbox_torch.publishing.pull import Pull

__all__ = ["Subscriber"]

POLL_S: Final = 0.5
"""Longest time until a cancelled ``apull`` that waits for a version returns."""


class Subscriber:
    """A reader of published weights; it may be created before the publisher.

    Thread-safe: concurrent pulls run one after another.

    Args:
        box: connection to the memory.
        name: name of the publication.

    Raises:
        TypeError, LimitError, ConfigError: the name is not valid.
    """

    def __init__(self, box: Box, name: str) -> None:
        check_box(box)
        check_prefix(name)
        self._box = box
        self._name = name
        self._counter = box.counter(publication.newest_name(name))
        self._mutex = Mutex()
        self._term: _TermReader | None = None
        self._memory: torch.Tensor | None = None  # None: not allocated, or being filled
        self._state: dict[str, torch.Tensor] = {}
        self._version = 0
        self._found_s = 0.0
        self._copy_s = 0.0

    @property
    def copy_s(self) -> float:
        """Seconds that the last pull needed to copy the version; 0 before the first pull."""
        return self._copy_s

    @property
    def version(self) -> int:
        """The version of ``state``; 0: none."""
        return self._version

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the last pull by name, on the CPU, in the published dtypes.

        The next pull overwrites them. After a pull that failed during the copy it is empty.
        """
        return MappingProxyType(self._state)

    def pull(
        self,
        into: Source | None = None,
        newer_than: int = 0,
        timeout_s: float = 30.0,
        names: Iterable[str] | None = None,
        version: int | None = None,
    ) -> int:
        """Copy the newest version; wait for it if it is not newer than ``newer_than``.

        Args:
            into: module or state dict to copy the version into, on any device. Floating-point
                values are converted to the dtypes of its tensors. None: only set ``state``.
            newer_than: a version, such as the result of the last pull; 0: any version will do.
            timeout_s: seconds to wait for a version and for the memory. A copy that has begun
                may take longer, as long as data arrives.
            names: pull only these tensors. ``into`` must have them; its other tensors do not
                change. None: pull all tensors; ``into`` must have the same names.
            version: pull exactly this version; wait until it is published.

        Returns:
            The number of the copied version.

        Raises:
            LayoutMismatchError: ``into`` has other names, shapes or dtypes, or one tensor for
                published ones with different values, or the publication lacks some of
                ``names``; ``into`` is unchanged.
            StaleVersionError: the publisher overwrote the version, or every version that was
                tried until the timeout; ``into`` is unchanged.
            RequestTimeoutError: no such version in time, or the memory did not answer;
                ``into`` is unchanged.
            ConfigError: this call is inside another one of the same thread, as in a signal
                handler; nothing was changed.
        """
        return self._pull(Pull(into, newer_than, timeout_s, names, version), math.inf)

    async def apull(
        self,
        into: Source | None = None,
        newer_than: int = 0,
        timeout_s: float = 30.0,
        names: Iterable[str] | None = None,
        version: int | None = None,
    ) -> int:
        """Pull without blocking the event loop; see ``pull``.

        A cancelled pull has ended when CancelledError is raised. That takes at most half
        a second if it was waiting for a version, and a few seconds if the memory does not
        answer. ``into`` is then unchanged or holds one complete version.
        """
        pull = Pull(into, newer_than, timeout_s, names, version)
        # Not a task: the end of asyncio.run would cancel it, and the thread would go on.
        # Its own thread: those of the loop are few, and other pulls may wait in all of them.
        thread = ThreadPoolExecutor(1, "smbox-pull")
        end = asyncio.get_running_loop().run_in_executor(thread, self._pull, pull, POLL_S)
        thread.shutdown(wait=False)  # it ends with the pull
        try:
            await asyncio.wait([end])  # if it is cancelled, the pull is not
        except asyncio.CancelledError:
            pull.cancel()
            while not end.done():
                with contextlib.suppress(asyncio.CancelledError):  # it may be cancelled again
                    await asyncio.wait([end])
            end.exception()  # retrieved, so that asyncio logs no warning
            raise
        return end.result()

    def __iter__(self) -> Iterator[int]:
        """Pull each version that is newer than the last one; wait without a timeout; never end.

        A slow reader misses versions: it gets the newest one.
        """
        while True:
            yield self.pull(newer_than=self._version, timeout_s=math.inf)

    async def __aiter__(self) -> AsyncIterator[int]:
        """Pull each version that is newer than the last one, as ``__iter__`` does."""
        while True:
            yield await self.apull(newer_than=self._version, timeout_s=math.inf)

    def _pull(self, pull: Pull, poll_s: float) -> int:
        """Pull; check the deadline at least every ``poll_s`` seconds."""

        def copy() -> int:
            self._read(pull, poll_s)
            pull.copy_to_target(self._state)
            self._copy_s = time.monotonic() - self._found_s
            return self._version

        def late() -> None:
            if pull.left_s() <= 0:
                raise pull.timeout("another pull of this subscriber is in progress")

        version = None
        while version is None:
            turn_s = deadline_of(pull.wait_s(POLL_S))
            version = self._mutex.holding(turn_s, copy, late=late)
        return version

    def _read(self, pull: Pull, poll_s: float) -> None:
        """Copy a version that satisfies the pull into ``state``."""
        newest = self._await(pull, Newest(0, 0), poll_s)
        self._found_s = time.monotonic()
        while True:
            version = newest.version if pull.version is None else pull.version
            if self._copy(newest.term, version, pull):
                return
            if pull.version is not None or pull.left_s() <= 0:
                raise StaleVersionError(
                    "the version was overwritten before it was copied: pull a newer one, or "
                    "let the publisher keep more",
                    publication=self._name,
                    version=version,
                    newest=Newest.of(self._counter.wait(0, timeout_s=0.0)).version,
                )
            newest = self._await(pull, newest, poll_s)

    def _await(self, pull: Pull, tried: Newest, poll_s: float) -> Newest:
        """Wait for a version that satisfies the pull and is newer than ``tried``."""
        at_least = tried.word + 1
        while True:
            try:
                word = self._counter.wait(at_least, timeout_s=pull.wait_s(poll_s))
            except RequestTimeoutError as error:
                if pull.left_s() > 0:
                    continue
                raise pull.timeout("no such version was published in time") from error
            newest = Newest.of(word)
            if newest.version >= pull.at_least:
                return newest
            at_least = newest.word + 1

    def _copy(self, term: int, version: int, pull: Pull) -> bool:
        """Copy a version into ``state``; return False if it is not in the memory."""
        try:
            if self._term is None or self._term.number != term:
                self._term = _TermReader(self._box, self._name, term, pull)
            chosen = pull.select(self._term.layout)
            buffer = self._term.buffer(version, pull)
            if _version_in(buffer, pull) != version:
                return False
            memory = self._emptied(self._term.layout)
            for first, limit in publication.runs(chosen.values()):
                data = buffer[HEAD_NBYTES + first : HEAD_NBYTES + limit]
                pull.read(data, memory[first:limit])
            self._memory = memory  # not before: an interrupted read might still write to it
            if _version_in(buffer, pull) != version:
                return False
        except (RegionFreedError, RegionNotFoundError):
            self._term = None
            return False
        self._state = {name: entry.view(memory) for name, entry in chosen.items()}
        self._version = version
        return True

    def _emptied(self, layout: Layout) -> torch.Tensor:
        """Return memory for a version, and empty ``state``, which used this memory."""
        self._state, self._version = {}, 0
        memory, self._memory = self._memory, None
        if memory is None or memory.numel() != layout.nbytes:
            memory = torch.empty(layout.nbytes, dtype=torch.uint8, device="cpu")
        return memory


class _TermReader:
    """The buffers of one term of the publisher, opened for reading.

    It raises RegionNotFoundError for regions that do not exist, and as ``Pull.open``.
    """

    def __init__(self, box: Box, name: str, number: int, pull: Pull) -> None:
        self._box = box
        self._name = name
        self.number = number
        described = pull.open(box, publication.layout_name(name, number))
        self.layout = publication.layout_of(pull.read(described))
        self._buffers: dict[int, Region] = {}

    def buffer(self, version: int, pull: Pull) -> Region:
        """Return the buffer of a version."""
        index = version % self.layout.keep
        if index not in self._buffers:
            name = publication.buffer_name(self._name, self.number, index)
            self._buffers[index] = pull.open(self._box, name)
        return self._buffers[index]


def _version_in(buffer: Region, pull: Pull) -> int:
    return int(pull.read(buffer[:VERSION_NBYTES]).view(np.int64)[0])
