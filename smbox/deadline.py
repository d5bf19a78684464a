"""Deadlines: when a call with a timeout ends, and how long each of its requests may take.

A call computes its deadline once, where it begins, on the monotonic clock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Final

from smbox.errors import ConfigError, RequestTimeoutError

ANSWER_MIN_S: Final = 0.9
"""How long an answer may take that is asked for when time is nearly over: no call outlasts its
timeout by more than a second."""


def check_seconds(timeout_s: object) -> float:
    """Return how long to wait, if one can wait so long.

    Raises:
        ConfigError: not a number of seconds; ``nan`` would never be over.
    """
    if not isinstance(timeout_s, Real) or math.isnan(timeout_s):
        raise ConfigError("timeout_s is a number of seconds", timeout_s=timeout_s)
    return float(timeout_s)


def deadline_of(timeout_s: float) -> float:
    """Return the monotonic time at which ``timeout_s`` from now has passed."""
    return math.inf if timeout_s == math.inf else time.monotonic() + timeout_s


def deadline_given(timeout_s: float | None) -> float | None:
    """Return the deadline of a timeout that a caller gave; None, which is none, has none.

    Raises:
        ConfigError: not a number of seconds.
    """
    return None if timeout_s is None else deadline_of(check_seconds(timeout_s))


def left_s(deadline_s: float) -> float:
    """Return how long a call may take that is a part of one with this deadline."""
    return max(0.0, deadline_s - time.monotonic())


def look_s(deadline_s: float) -> float:
    """Return how long one request may take: until the deadline, but ANSWER_MIN_S at least.

    All requests of a call together end at most ANSWER_MIN_S after its deadline.
    """
    left = deadline_s - time.monotonic()
    return max(left, min(left + ANSWER_MIN_S, ANSWER_MIN_S), 0.0)


def answer_s(deadline_s: float | None) -> float | None:
    """Return ``look_s``; None, which is the timeout of the box, where there is no deadline."""
    return None if deadline_s is None else look_s(deadline_s)


@contextmanager
def held(mutex: threading.Lock, deadline_s: float | None) -> Iterator[None]:
    """Hold a mutex under which other threads wait for the node; None: however long they do.

    Raises:
        RequestTimeoutError: another thread held it until the deadline; nothing was done.
    """
    wait_s = min(left_s(math.inf if deadline_s is None else deadline_s), threading.TIMEOUT_MAX)
    is_held = False
    try:
        is_held = mutex.acquire(timeout=wait_s)
        if not is_held:
            message = "the node has not answered another thread of this process yet"
            raise RequestTimeoutError(message, outcome="none")
        yield
    finally:
        if is_held:
            mutex.release()
