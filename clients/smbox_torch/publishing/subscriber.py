"""Subscriber: one whole version of published weights at a time, or none.

A version is copied into memory of the subscriber; it counts when the buffer still names the
same version after the copy, else the newest one is copied. Only then is ``into`` written, so a
module never holds parts of two versions. Without ``into`` the copy itself is the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
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
from smbox.head import check_prefix
from smbox_torch.boxes import check_box
from smbox_torch.publishing import publication
from smbox_torch.publishing.publication import (
    HEAD_NBYTES,
    VERSION_NBYTES,
    Layout,
    Newest,
    Source,
)
from smbox_torch.publishing.wanted import Wanted

__all__ = ["Subscriber"]

LOOK_S: Final = 0.5
"""How long an ``apull`` that was cancelled may go on waiting."""


class Subscriber:
    """A reader of a publication; it may be made before the publisher is.

    Thread-safe; pulls take turns.

    Args:
        box: the memory.
        name: of the publication.

    Raises:
        TypeError, LimitError, ConfigError: no publication can have this name.
    """

    def __init__(self, box: Box, name: str) -> None:
        check_box(box)
        check_prefix(name)
        self._box = box
        self._name = name
        self._counter = box.counter(publication.newest_name(name))
        self._lock = threading.Lock()
        self._term: _Term | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._state: dict[str, torch.Tensor] = {}
        self._version = 0
        self._found_s = 0.0
        self._copy_s = 0.0

    @property
    def copy_s(self) -> float:
        """Seconds that the last pull took once it had found its version; 0: none yet."""
        return self._copy_s

    @property
    def version(self) -> int:
        """The version of ``state``; 0: none."""
        return self._version

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the last pull, by name, in the publisher's types; on the CPU.

        They lie in memory of this subscriber, which the next pull overwrites. After a pull that
        failed while it copied there are none.
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
            into: module or state dict whose tensors become those of the version: converted to
                their dtypes if floating-point, on any device. None: only ``state`` does.
            newer_than: a version, such as the last pull returned; 0: any.
            timeout_s: seconds to wait for a version. A copy that has begun takes its time as
                long as some of it arrives.
            names: only these tensors; ``into`` must have them, and its others stay. None: all
                of them; ``into`` must have the same names.
            version: exactly this one, once it was published.

        Returns:
            The version.

        Raises:
            LayoutMismatchError: ``into`` has other names, shapes or types, or the publication
                lacks some of ``names``; ``into`` is as it was.
            StaleVersionError: the publisher overwrote the version, or each one in turn until
                the time was over; ``into`` is as it was.
            RequestTimeoutError: no such version in time, or the memory did not answer;
                ``into`` is as it was.
        """
        return self._pull(Wanted(into, newer_than, timeout_s, names, version), math.inf)

    async def apull(
        self,
        into: Source | None = None,
        newer_than: int = 0,
        timeout_s: float = 30.0,
        names: Iterable[str] | None = None,
        version: int | None = None,
    ) -> int:
        """Pull without blocking the event loop; see ``pull``.

        A cancelled pull is over when CancelledError is raised, half a second later at most if
        it only waited; ``into`` then is as it was, or holds one whole version.
        """
        wanted = Wanted(into, newer_than, timeout_s, names, version)
        pull = asyncio.ensure_future(asyncio.to_thread(self._pull, wanted, LOOK_S))
        try:
            return await asyncio.shield(pull)
        except asyncio.CancelledError:
            wanted.give_up()
            while not pull.done():
                with contextlib.suppress(asyncio.CancelledError):  # it may be cancelled again
                    await asyncio.wait([pull])
            pull.exception()  # taken: nobody else asks for it
            raise

    def __iter__(self) -> Iterator[int]:
        """Pull each version that is newer than the last, without end; waits for ever.

        A slow reader misses versions: it gets the newest one.
        """
        while True:
            yield self.pull(newer_than=self._version, timeout_s=math.inf)

    async def __aiter__(self) -> AsyncIterator[int]:
        """Pull each version that is newer than the last, as ``__iter__`` does."""
        while True:
            yield await self.apull(newer_than=self._version, timeout_s=math.inf)

    def _pull(self, wanted: Wanted, look_s: float) -> int:
        """Pull; look at least every ``look_s`` seconds whether the time is over."""
        while not self._lock.acquire(timeout=LOOK_S):
            if wanted.left_s() <= 0:
                raise wanted.timeout("another pull of this subscriber was under way")
        try:
            self._read(wanted, look_s)
            wanted.fill(self._state)
            self._copy_s = time.monotonic() - self._found_s
            return self._version
        finally:
            self._lock.release()

    def _read(self, wanted: Wanted, look_s: float) -> None:
        """Copy a version that is wanted into ``state``."""
        newest = self._await(wanted, Newest(0, 0), look_s)
        self._found_s = time.monotonic()
        while True:
            version = newest.version if wanted.version is None else wanted.version
            if self._copy(newest.term, version, wanted):
                return
            if wanted.version is not None or wanted.left_s() <= 0:
                raise StaleVersionError(
                    "the version was overwritten before it was copied: pull a newer one, or "
                    "let the publisher keep more",
                    publication=self._name,
                    version=version,
                    newest=Newest.of(self._counter.value).version,
                )
            newest = self._await(wanted, newest, look_s)

    def _await(self, wanted: Wanted, tried: Newest, look_s: float) -> Newest:
        """Wait for a newer version than the one tried that is wanted."""
        at_least = tried.word + 1
        while True:
            left_s = min(wanted.left_s(), look_s)
            try:
                newest = Newest.of(self._counter.wait(at_least, timeout_s=max(0.0, left_s)))
            except RequestTimeoutError as error:
                if wanted.left_s() > 0:
                    continue
                raise wanted.timeout("no such version was published in time") from error
            if newest.version >= wanted.at_least:
                return newest
            at_least = newest.word + 1

    def _copy(self, term: int, version: int, wanted: Wanted) -> bool:
        """Copy a version into ``state``; False if it is not, or no longer, in the memory."""
        try:
            if self._term is None or self._term.number != term:
                self._term = _Term(self._box, self._name, term)
            chosen = wanted.choose(self._term.layout)
            buffer = self._term.buffer(version)
            if _version_in(buffer) != version:
                return False
            memory = self._emptied(self._term.layout)
            for first, limit in publication.runs(chosen.values()):
                data = buffer[HEAD_NBYTES + first : HEAD_NBYTES + limit]
                data.get(out=memory[first:limit])
            if _version_in(buffer) != version:
                return False
        except (RegionFreedError, RegionNotFoundError):
            self._term = None
            return False
        self._state = {name: entry.view(memory) for name, entry in chosen.items()}
        self._version = version
        return True

    def _emptied(self, layout: Layout) -> torch.Tensor:
        """Return memory for a version; what was in it is no state any more."""
        self._state, self._version = {}, 0
        if self._memory.numel() != layout.nbytes:
            self._memory = torch.empty(layout.nbytes, dtype=torch.uint8)
        return self._memory


class _Term:
    """The buffers of one term of the publisher, as a reader finds them."""

    def __init__(self, box: Box, name: str, number: int) -> None:
        self._box = box
        self._name = name
        self.number = number
        self.layout = publication.layout_of(box, name, number)
        self._buffers: dict[int, Region] = {}

    def buffer(self, version: int) -> Region:
        """Return the buffer of a version; RegionNotFoundError if there is none."""
        index = version % self.layout.keep
        if index not in self._buffers:
            name = publication.buffer_name(self._name, self.number, index)
            self._buffers[index] = self._box.attach(name, timeout_s=None)
        return self._buffers[index]


def _version_in(buffer: Region) -> int:
    return int(buffer[:VERSION_NBYTES].get().view(np.int64)[0])
