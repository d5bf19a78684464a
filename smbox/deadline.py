"""Deadlines: the end of a call with a timeout, and the timeouts of its requests.

A call computes its deadline once, at its beginning, on the monotonic clock.
"""

from __future__ import annotations

import math
import time
from numbers import Real
from typing import Final

from smbox.errors import ConfigError

ANSWER_MIN_S: Final = 0.9
"""Timeout of a request that is sent at the deadline, in seconds. So no call exceeds its timeout
by more than a second."""


def check_seconds(timeout_s: object) -> float:
    """Return a timeout as a float.

    Raises:
        ConfigError: it is not a number of seconds, or it is nan.
    """
    if not isinstance(timeout_s, Real) or math.isnan(timeout_s):
        raise ConfigError("timeout_s must be a number of seconds", timeout_s=timeout_s)
    return float(timeout_s)


def deadline_of(timeout_s: float) -> float:
    """Return the monotonic time ``timeout_s`` from now."""
    return time.monotonic() + timeout_s


def deadline_given(timeout_s: float | None) -> float | None:
    """Return the deadline of a caller's timeout; None has no deadline.

    Raises:
        ConfigError: the timeout is not a number of seconds.
    """
    return None if timeout_s is None else deadline_of(check_seconds(timeout_s))


def left_s(deadline_s: float) -> float:
    """Return the seconds left until a deadline, at least 0."""
    return max(0.0, deadline_s - time.monotonic())


def request_timeout_s(deadline_s: float) -> float:
    """Return the timeout in seconds of a request of a call.

    A request may take ANSWER_MIN_S even if less is left, but all requests of a call end at most
    ANSWER_MIN_S after its deadline.
    """
    left = deadline_s - time.monotonic()
    return max(left, min(left + ANSWER_MIN_S, ANSWER_MIN_S), 0.0)


def optional_timeout_s(deadline_s: float | None) -> float | None:
    """Return ``request_timeout_s``; without a deadline None, the timeout of the box."""
    return None if deadline_s is None else request_timeout_s(deadline_s)
