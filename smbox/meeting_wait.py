"""How long a member waits at a meeting, and what it says of those who are missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from smbox.deadline import check_seconds, deadline_of
from smbox.errors import RequestTimeoutError
from smbox.roster import MemberInfo

_LOG = logging.getLogger(__name__)

MEET_TIMEOUT_S: Final = 300.0
"""Longest wait for those who never came, where the living are waited for without limit."""

TELL_S: Final = 60.0
"""Between two lines of the log that name who is missing."""


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
