"""Answers of one channel that are still being sent: who does not read cannot fill the node.

ZeroMQ sends an answer from the memory that it was copied into, and says nothing when it is
done. But it lets that memory go then, so the memory's own life tells how much is under way.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

UNSENT_NBYTES_MAX: Final = 3 << 20
"""Of a channel: with as many bytes of copies under way, none of its requests that answers
bytes is begun. The kernel takes some MiB besides; eight clients that stop in reads of copies
cost the node 26 MiB."""


def nobody() -> None:
    """Wake nobody: whoever drives the node comes back without being told."""


class Unsent:
    """The memory of a channel's answers, as long as somebody sends it.

    Attributes:
        is_waited_for: whether a request waits until some of it is sent.

    Args:
        wake: called, from any thread, when an answer is sent that is waited for.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.is_waited_for = False
        self._wake = wake
        self._answers: deque[tuple[weakref.ref[Any], int]] = deque()
        self._nbytes = 0

    def add(self, answer: NDArray[np.uint8]) -> None:
        """Count an answer that was copied into memory of its own; it is sent in this order."""
        self._answers.append((weakref.ref(answer, self._sent), answer.nbytes))
        self._nbytes += answer.nbytes

    def ask_for_room(self) -> bool:
        """Return whether an answer may be made now; else ``wake`` is called when it may."""
        self.is_waited_for = True  # before the look: an answer sent from here on wakes
        while self._answers and self._answers[0][0]() is None:  # sent in the order of adding
            self._nbytes -= self._answers.popleft()[1]
        self.is_waited_for = self._nbytes >= UNSENT_NBYTES_MAX
        return not self.is_waited_for

    def close(self) -> None:
        """Count nothing more, and wake nobody."""
        self._answers.clear()

    def _sent(self, _memory: weakref.ref[Any]) -> None:
        if self.is_waited_for:
            self._wake()
