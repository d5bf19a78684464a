"""Meetings of a run: the meeting word of a member, and the wait for the other members.

The meeting word of a member is a number that only grows:

    2 n - 1     it has arrived at meeting n and waits for the others
    2 n         meeting n is complete

Every ``ENDS``-th meeting is an end. ``finish`` goes directly to the next end: meetings before
it do not wait for that member. An end waits for all members.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.deadline import check_seconds, deadline_of
from smbox.errors import RequestTimeoutError
from smbox.lease import I64
from smbox.member_record import MemberInfo

_LOG = logging.getLogger(__name__)

ENDS: Final = (1 << 32) + 1
"""Meetings from one end to the next. A meeting word can count 127 ends; it cannot hold the
arrival at another one either."""

MEET_TIMEOUT_S: Final = 300.0
"""Longest wait for members that never joined, if the wait for living ones has no limit."""

WARNING_INTERVAL_S: Final = 60.0
"""Seconds between two log lines that name the missing members."""


def next_meeting(word: int) -> int:
    """Return the next meeting of a member; after a timeout, the same meeting again."""
    return word // 2 + 1


def next_end(word: int) -> int:
    """Return the next end of a member."""
    return -(-next_meeting(word) // ENDS) * ENDS


def has_arrived(words: I64, number: int) -> NDArray[np.bool_]:
    """Return which members have arrived at a meeting or at a later one."""
    return words >= 2 * number - 1


def is_at_end(words: I64) -> NDArray[np.bool_]:
    """Return which members wait at an end."""
    found: NDArray[np.bool_] = words % (2 * ENDS) == 2 * ENDS - 1
    return found


def first_word(others: I64) -> int:
    """Return the meeting word of a new member: the last meeting that the others completed.

    The new member takes part in an end at which others wait.
    """
    held = np.where(is_at_end(others), others + 1 - 2 * ENDS, others // 2 * 2)
    return int(held.max(initial=0))


class MeetingWait:
    """The time limit of one wait, which begins when the object is made.

    Args:
        timeout_s: longest wait, in seconds. None: no limit while a living member is missing,
            then MEET_TIMEOUT_S for expected members that never joined.

    Attributes:
        deadline_s: end of the wait on the monotonic clock; None: no limit.

    Raises:
        ConfigError: timeout_s is not a number of seconds.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = MEET_TIMEOUT_S if timeout_s is None else check_seconds(timeout_s)
        self._end_s = deadline_of(self._timeout_s)
        self.deadline_s = None if timeout_s is None else self._end_s
        self._warn_s = deadline_of(WARNING_INTERVAL_S)

    def left_s(self, absent: Sequence[MemberInfo]) -> float:
        """Return the seconds until the caller must call this again; log missing members.

        Raises:
            RequestTimeoutError: the wait timed out; the error names the missing members.
        """
        now_s = time.monotonic()
        if self.deadline_s is None and any(each.alive for each in absent):
            self._end_s = now_s + self._timeout_s
        if now_s >= self._end_s:
            raise RequestTimeoutError(
                f"members of the run did not come to a meeting: {_named(absent)}",
                op="meet",
                timeout_s=self._timeout_s,
            )
        if now_s >= self._warn_s:
            self._warn_s = now_s + WARNING_INTERVAL_S
            _LOG.warning("a meeting of the run waits for %s", _named(absent))
        return min(self._end_s, self._warn_s) - now_s


def _named(members: Sequence[MemberInfo]) -> str:
    return ", ".join(
        f"rank {each.rank} (host {each.host}, pid {each.pid})"
        if each.alive
        else f"rank {each.rank} (never came)"
        for each in members
    )
