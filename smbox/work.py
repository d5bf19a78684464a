"""Work: a request in progress; Pause: growing pauses between polls; Exclusive: nested calls."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from smbox.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q", bound="Exclusive")

YIELD_S: Final = 200e-6
"""Time of polling without sleeps: a writer holds a stripe for about 100 us, and Linux makes the
shortest sleep as long."""

PAUSE_MAX_S: Final = 3e-3
"""Longest pause between polls of mapped memory: one poll takes about 12 us of a core."""

NESTED: Final = (
    "a signal handler or finalizer cannot use the box inside another call of its thread; let it"
    " set a flag and return"
)


class NestedCallError(ConfigError):
    """A call inside another call of the same thread was refused; its request is unchanged."""


def exclusive(method: Callable[Concatenate[Q, P], R]) -> Callable[Concatenate[Q, P], R]:
    """Let one thread at a time run the exclusive methods of an object, and each of them once.

    A call inside another one of the same thread raises NestedCallError: it would wait for
    itself. Both locks are released by ``with`` alone, so no interrupt leaves one acquired.
    """

    @wraps(method)
    def alone(self: Q, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:  # excludes other threads; a nested call of this thread gets in
            if self._busy.locked():
                raise NestedCallError(NESTED)
            with self._busy:
                return method(self, *args, **kwargs)

    return alone


class Exclusive:
    """The base of classes with exclusive methods; their constructors call ``renew_locks``.

    A forked child makes the locks anew: a thread of the parent may hold them at the fork.
    """

    def renew_locks(self) -> None:
        """Make the locks; in a forked child again."""
        self._lock = threading.RLock()
        self._busy = threading.Lock()  # held inside an exclusive method
        _ALL.add(self)

    @exclusive
    def check_not_nested(self) -> None:
        """Raise NestedCallError if this thread is inside an exclusive method."""


_ALL: Final[weakref.WeakSet[Exclusive]] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [*map(Exclusive.renew_locks, list(_ALL))])


class Work:
    """A request in progress; this base class is a request without effect."""

    def begin(self) -> None:
        """Start the request without waiting; a second call does nothing."""

    def advance(self, deadline_s: float) -> bool:
        """Run the request until it is done or the monotonic clock passes ``deadline_s``.

        A deadline in the past means one try without waiting. Any thread may call it again,
        after False and after an interrupt: the request continues exactly once.

        Returns:
            True when done; False at the deadline.

        Raises:
            NestedCallError: this thread is inside another call; the request is unchanged.
            SmboxError: the request failed; later calls raise the same error.
        """
        raise NotImplementedError

    def drive(self, timeout_s: float, *, restarts: bool) -> bool:
        """Advance until a timeout, which restarts, if wanted, as long as there is progress.

        Returns and raises as ``advance``.
        """
        while True:
            before = self.progress()
            is_done = self.advance(time.monotonic() + timeout_s)
            if is_done or not restarts or self.progress() == before:
                return is_done

    def mark_reported(self) -> None:
        """Note that a call raises the error of this request: no flush raises it too."""

    def progress(self) -> int:
        """Return a number that grows while the request, or one before it, makes progress."""
        return 0

    def outcome(self) -> str:
        """Return the known effect: "none", "partial", "all" or "unknown"."""
        return "none"

    def ranges_done(self) -> list[tuple[int, int]]:
        """Return the byte ranges of the region's data that are certainly done, ascending."""
        return []

    def facts(self) -> dict[str, object]:
        """Return more facts for a timeout error, such as the pid of a lock holder."""
        return {}

    def cancel(self) -> None:
        """Cancel the request: nothing more is sent, and its arrays are not accessed again.

        Committed changes stay. Messages in flight may still take effect; ``advance`` returns
        True once it is known whether they did. Waits for one second at most.
        """


class Pause:
    """Pauses between polls: the first ones yield the core, later ones are sleeps.

    A sleep lasts an eighth of the time since the first poll: a long wait is prolonged by
    little, and takes little time of a core.

    Args:
        min_s: of the shortest sleep.
        max_s: of the longest.
    """

    def __init__(self, min_s: float = 20e-6, max_s: float = PAUSE_MAX_S) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._since_s = time.monotonic()

    def sleep(self, deadline_s: float) -> bool:
        """Pause once, at most until the deadline; return False at once if it has passed."""
        now_s = time.monotonic()
        if now_s >= deadline_s:
            return False
        waited_s = now_s - self._since_s
        if waited_s < YIELD_S:
            os.sched_yield()
            return True
        pause_s = min(max(waited_s / 8, self._min_s), self._max_s)
        time.sleep(min(pause_s, deadline_s - now_s))
        return True
