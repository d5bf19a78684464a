"""Regions of a client's own in which it finds the copies of its snapshots.

They are never published: nobody else has their address, and the node takes them back when
the client says goodbye or is gone. A few are kept for the next operation of the same size.
A lease ends when its work has ended well; after any failure its region is not used again,
because something may still be on its way into it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from smbox import dtypes
from smbox.deadline import deadline_of, left_s
from smbox.errors import PeerLostError, RequestTimeoutError, SmboxError
from smbox.paths.control import ControlPath
from smbox.paths.work import CreateRequest, Lease, RegionInfo

IDLE_MAX: Final = 4
"""Staging regions that a client keeps unused."""

IDLE_S: Final = 60.0
"""How long: of a client that is silent for minutes the node takes them back."""

T = TypeVar("T")

_UINT8: Final = dtypes.by_name("uint8")


class Staging:
    """The staging regions of one client; thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._idle: list[tuple[RegionInfo, float]] = []  # and since when
        self._condemned: list[RegionInfo] = []

    def lease(self, control: ControlPath, nbytes: int, timeout_s: float) -> Lease:
        """Return a region of ``nbytes`` bytes that nobody else uses.

        What is freed before it is made shares its time.

        Raises:
            OutOfMemoryError: the node has no room for it.
            RequestTimeoutError: it does not answer.
        """
        deadline_s = deadline_of(timeout_s)
        with self._mutex:
            info = self._take(nbytes)
            condemned, self._condemned = self._condemned, []
        while condemned:
            try:
                control.free(condemned[-1].address, left_s(deadline_s))
            except RequestTimeoutError:  # not just now
                with self._mutex:
                    self._condemned += condemned
                break
            except SmboxError:
                pass  # the node has taken it back already
            condemned.pop()
        if info is None:
            name = f"staging.{secrets.token_hex(8)}"
            request = CreateRequest(name, _UINT8, (nbytes,), publish=False, scratch=True)
            info = control.create(request, left_s(deadline_s))
        return Lease(info, self._end)

    def clear(self) -> None:
        """Forget all, in a forked child or at the end: the node takes them back."""
        self._mutex = threading.RLock()
        self._idle, self._condemned = [], []

    def _take(self, nbytes: int) -> RegionInfo | None:
        oldest_s = time.monotonic() - IDLE_S
        self._condemned += [info for info, since_s in self._idle if since_s < oldest_s]
        self._idle = [entry for entry in self._idle if entry[1] >= oldest_s]
        for at, (info, _) in enumerate(self._idle):
            if info.nbytes == nbytes:
                del self._idle[at]
                return info
        return None

    def _end(self, info: RegionInfo, is_sound: bool) -> None:  # noqa: FBT001 - Lease calls it
        with self._mutex:
            if not is_sound:
                self._condemned.append(info)
                return
            self._idle.append((info, time.monotonic()))
            if len(self._idle) > IDLE_MAX:
                self._condemned.append(self._idle.pop(0)[0])


def once_more(verb: Callable[[], T]) -> T:
    """Call a blocking snapshot, again as long as the node has lost its staging.

    That staging is not used again; all that are kept may have been lost.
    """
    for _ in range(IDLE_MAX):
        try:
            return verb()
        except PeerLostError as error:
            if error.facts.get("lost") != "staging" or error.facts.get("outcome") != "none":
                raise
    return verb()
