"""Flow control: limits of the bytes in flight to the node, and on their way to a client.

To the node: ZeroMQ reads requests ahead and limits their number, not their bytes. So each
client limits the bytes that it has in flight to its credit, which the reply to a long request
carries: a large one for a client that sends alone, a small one for each of many.

To a client: ZeroMQ sends an answer from the memory that holds the copy and does not report when
it is sent. But it releases that memory then; ``Unsent`` tracks it by weakref.
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
"""Number of the last long requests whose senders share the credit."""

FIRST_MIB: Final = 4
"""Credit of a channel with nothing in flight: many channels may start at the same moment."""

LONG_NBYTES: Final = (FIRST_MIB << 20) // WINDOW_MAX
"""A window full of requests of this size fits the first credit; longer ones need a reply's."""

ALONE_MIB: Final = WINDOW_MAX
LEAST_MIB: Final = 2
SHARED_MIB: Final = 20
"""Divided among all senders. Eight that start at once make the node grow by some 25 MiB."""

ANSWERS_NBYTES: Final = 4 << 20
"""Limit of a channel for answers in flight that are copies, and for the sources of batches that
are answered, which also wait at the node. With 4 MiB it has the bandwidth that it has with 16,
and a client that stops reading costs the node a quarter."""

LENT_NBYTES: Final = WINDOW_MAX << 20
"""Limit of a channel for LENDs in flight. They need no memory of the node, but the client's
ZeroMQ buffers answers that the client has not read yet."""

UNSENT_NBYTES_MAX: Final = 3 << 20
"""With so many bytes of copies unsent, no request of a channel that is answered by a copy is
started. The kernel buffers some MiB more: eight clients that stop reading in the middle of
copied reads cost the node 26 MiB."""


class Credit:
    """Computes credit from the senders of the last long requests."""

    def __init__(self) -> None:
        self._recent: deque[object] = deque(maxlen=RECENT_MAX)

    def after(self, connection: object) -> int:
        """Return the credit, in MiB, of a channel after a request of over ``LONG_NBYTES``."""
        self._recent.append(connection)
        share = SHARED_MIB // len(set(self._recent))
        return max(LEAST_MIB, min(share, ALONE_MIB))


class Unsent:
    """The copied answers of a channel that ZeroMQ has not finished sending.

    Args:
        wake: called, from any thread, when an answer was sent and ``has_room`` returned False.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._is_waiting = False
        self._wake = wake
        self._answers: deque[tuple[weakref.ref[Any], int]] = deque()
        self._nbytes = 0

    def add(self, answer: NDArray[np.uint8]) -> memoryview:
        """Count an answer that has memory of its own; return its bytes, to be sent next."""
        self._answers.append((weakref.ref(answer, self._sent), answer.nbytes))
        self._nbytes += answer.nbytes
        return answer.data

    def has_room(self) -> bool:
        """Return whether an answer may be made now; if not, ``wake`` is called when it may."""
        self._is_waiting = True  # before the test: an answer sent from here on calls wake
        while self._answers and self._answers[0][0]() is None:  # sent in the order of adding
            self._nbytes -= self._answers.popleft()[1]
        self._is_waiting = self._nbytes >= UNSENT_NBYTES_MAX
        return not self._is_waiting

    def close(self) -> None:
        """Stop counting; ``wake`` is not called any more."""
        self._answers.clear()

    def _sent(self, _memory: weakref.ref[Any]) -> None:
        if self._is_waiting:
            self._wake()
