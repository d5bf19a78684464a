"""Meetings of a run: where a member stands among them, and how long it waits for the others.

Where it stands is one number, which only grows:

    2 n - 1     it has come to meeting n, and waits for the others
    2 n         meeting n was held

Every ``ENDS``-th meeting is an end. A member goes to the next end at once, whatever meetings
lie before it: those wait for it no more, and an end waits for all.
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
from smbox.member_record import MemberInfo

_LOG = logging.getLogger(__name__)

I64 = NDArray[np.int64]

ENDS: Final = 1 << 32
"""Meetings from one end to the next; a member's word has room for 127 ends."""

MEET_TIMEOUT_S: Final = 300.0
"""Longest wait for those who never came, where the living are waited for without limit."""

TELL_S: Final = 60.0
"""Between two lines of the log that name who is missing."""


def following(word: int) -> int:
    """Return the meeting that is next; one that a member came to and gave up is next again."""
    return word // 2 + 1


def end(word: int) -> int:
    """Return the end that is next."""
    return -(-following(word) // ENDS) * ENDS


def has_come(words: I64, number: int) -> NDArray[np.bool_]:
    """Tell who has come to a meeting, or to a later one."""
    return words >= 2 * number - 1


def is_at_end(words: I64) -> NDArray[np.bool_]:
    """Tell who waits at an end for the others."""
    found: NDArray[np.bool_] = words % (2 * ENDS) == 2 * ENDS - 1
    return found


def first_word(others: I64) -> int:
    """Return the word of a member that joins: after all meetings that these have held.

    It has still to come to an end at which others wait.
    """
    held = np.where(is_at_end(others), others + 1 - 2 * ENDS, others // 2 * 2)
    return int(held.max(initial=0))


class MeetingWait:
    """One wait, from its making on.

    Args:
        timeout_s: longest wait. None: as long as somebody lives who has not come, then
            MEET_TIMEOUT_S for those who never came.

    Attributes:
        deadline_s: when the wait ends, on the monotonic clock; None: without limit.

    Raises:
        ConfigError: timeout_s is no number of seconds.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = MEET_TIMEOUT_S if timeout_s is None else check_seconds(timeout_s)
        self._end_s = deadline_of(self._timeout_s)
        self.deadline_s = None if timeout_s is None else self._end_s
        self._tell_s = deadline_of(TELL_S)

    def left_s(self, absent: Sequence[MemberInfo]) -> float:
        """Return how long to wait for these at most, until to ask again.

        Raises:
            RequestTimeoutError: it was too long; the error names who did not come.
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
        if now_s >= self._tell_s:
            self._tell_s = now_s + TELL_S
            _LOG.warning("a meeting of the run waits for %s", _named(absent))
        return min(self._end_s, self._tell_s) - now_s


def _named(members: Sequence[MemberInfo]) -> str:
    return ", ".join(
        f"rank {each.rank} (never came)"
        if each.pid is None
        else f"rank {each.rank} (host {each.host}, pid {each.pid})"
        for each in members
    )
