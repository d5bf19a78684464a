"""Flow control: how much a channel may have in flight to the node, and on its way back.

To the node: ZeroMQ reads requests ahead and limits their number, not their bytes. So each
client keeps to a number of bytes, its credit, which the reply to a long request tells: much for
a client that sends alone, little for each of many.

Back: ZeroMQ sends an answer from the memory that it was copied into, and says nothing when it
is done. But it lets that memory go then, so the memory's own life tells how much is under way.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.config import WINDOW_MAX

RECENT_MAX: Final = 32
"""Long requests that are remembered: who sent one of these counts as a sender."""

FIRST_MIB: Final = 4
"""Of a channel with nothing in flight, because many may begin at the same moment."""

LONG_NBYTES: Final = (FIRST_MIB << 20) // WINDOW_MAX
"""A whole window of shorter requests fits the first credit anyway."""

ALONE_MIB: Final = WINDOW_MAX
LEAST_MIB: Final = 2
SHARED_MIB: Final = 20
"""Divided among all senders. Eight that begin at once make the node grow by some 25 MiB."""

ANSWERS_NBYTES: Final = 4 << 20
"""What may be under way of a channel's requests that are answered by copies. With 4 MiB it gets
as much a second as with 16, and who stops reading costs the node a quarter; what a batch brings
is counted, too, because it waits at the node like its answer."""

LENT_NBYTES: Final = WINDOW_MAX << 20
"""What a channel's LENDs may wait for: it costs the node no memory, but the client, whose
ZeroMQ takes in what the client has not yet come to."""

UNSENT_NBYTES_MAX: Final = 3 << 20
"""Of a channel: with as many bytes of copies under way, none of its requests that answers
bytes is begun. The kernel takes some MiB besides; eight clients that stop in reads of copies
cost the node 26 MiB."""


class Credit:
    """Remembers who sent the last long requests."""

    def __init__(self) -> None:
        self._recent: deque[object] = deque(maxlen=RECENT_MAX)

    def after(self, connection: object) -> int:
        """Return the credit, in MiB, of a channel after a request of over ``LONG_NBYTES``."""
        self._recent.append(connection)
        share = SHARED_MIB // len(set(self._recent))
        return max(LEAST_MIB, min(share, ALONE_MIB))


class Unsent:
    """The memory of a channel's answers, as long as somebody sends it.

    Args:
        wake: called, from any thread, when an answer is sent that is waited for.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._is_waited_for = False
        self._wake = wake
        self._answers: deque[tuple[weakref.ref[Any], int]] = deque()
        self._nbytes = 0

    def add(self, answer: NDArray[np.uint8]) -> None:
        """Count an answer that was copied into memory of its own; it is sent in this order."""
        self._answers.append((weakref.ref(answer, self._sent), answer.nbytes))
        self._nbytes += answer.nbytes

    def ask_for_room(self) -> bool:
        """Return whether an answer may be made now; else ``wake`` is called when it may."""
        self._is_waited_for = True  # before the look: an answer sent from here on wakes
        while self._answers and self._answers[0][0]() is None:  # sent in the order of adding
            self._nbytes -= self._answers.popleft()[1]
        self._is_waited_for = self._nbytes >= UNSENT_NBYTES_MAX
        return not self._is_waited_for

    def close(self) -> None:
        """Count nothing more, and wake nobody."""
        self._answers.clear()

    def _sent(self, _memory: weakref.ref[Any]) -> None:
        if self._is_waited_for:
            self._wake()
