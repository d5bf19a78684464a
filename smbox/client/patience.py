"""How long a channel waits for an answer before it connects anew. Pure: time is an argument.

A node that is away is greeted again after ``resend_after_s``, doubling to
``resend_after_max_s``. One that greets and then is silent may be behind a slow network, where a
message takes many seconds and a fresh connection begins it anew: so patience with it is twice
as long as its last answer took, and doubles in silence up to SILENCE_MAX_S.
"""

from __future__ import annotations

from typing import Final

from smbox.config import ClientConfig

SILENCE_MAX_S: Final = 20.0
"""The longest patience with a node that has greeted: 2 MiB over 1 Mbit/s. It is how long it may
take to see that a node was killed which had long been silent, as when a stripe is held."""

IDLE_S: Final = 60.0
"""After so long a silence the node may have forgotten the channel (memnode: 300 s): greeting
it first costs a round trip, a change that meets no session an error."""


class Patience:
    """Counts the time that a channel waits; not the time in which its caller computes.

    Attributes:
        heard_s: when the node was heard last, or first expected to answer.

    Args:
        config: the first and the longest pause.
    """

    def __init__(self, config: ClientConfig) -> None:
        self.heard_s = 0.0
        self._first_s = config.resend_after_s
        self._greeting_max_s = config.resend_after_max_s
        self._greeting_s = self._reply_s = config.resend_after_s
        self._quiet_s = 0.0

    def is_stale(self, now_s: float) -> bool:
        """Tell whether a connection has been silent for so long that it is not trusted."""
        return now_s - self.heard_s > IDLE_S

    def expect(self, now_s: float) -> None:
        """Begin to wait: nothing was due before."""
        self.heard_s = now_s
        self._quiet_s = 0.0

    def left_s(self, *, is_greeted: bool) -> float:
        """Return how long to wait on."""
        return (self._reply_s if is_greeted else self._greeting_s) - self._quiet_s

    def heard(self, waited_s: float, now_s: float, *, is_greeted: bool) -> None:
        """Note an answer, and how long it was waited for since the last look."""
        if is_greeted:
            self._reply_s = self._after(self._quiet_s + waited_s)
        else:
            self._greeting_s = self._first_s
        self.expect(now_s)

    def is_over(self, waited_s: float, *, is_greeted: bool) -> bool:
        """Note silence; True when it is time to connect anew."""
        self._quiet_s += waited_s
        if self.left_s(is_greeted=is_greeted) > 0:
            return False
        if is_greeted:
            self._reply_s = self._after(self._quiet_s)
        else:
            self._greeting_s = min(2 * self._greeting_s, self._greeting_max_s)
        self._quiet_s = 0.0
        return True

    def _after(self, waited_s: float) -> float:
        return max(self._first_s, min(2 * waited_s, SILENCE_MAX_S))
