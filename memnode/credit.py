"""Flow-control credit: how many bytes of data each channel may have in flight to the node.

ZeroMQ reads requests ahead and limits their number, not their bytes. So each client keeps to a
number of bytes, which the reply to a long request tells: much for a client that sends alone,
little for each of many.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from memnode.sessions import Connection
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


class Credit:
    """Remembers who sent the last long requests."""

    def __init__(self) -> None:
        self._recent: deque[Connection] = deque(maxlen=RECENT_MAX)

    def after(self, connection: Connection, nbytes: int) -> int:
        """Return the credit of a channel after a request that brought ``nbytes``.

        Returns:
            MiB; 0: as much as before.
        """
        if nbytes <= LONG_NBYTES:
            return 0
        self._recent.append(connection)
        share = SHARED_MIB // len(set(self._recent))
        return max(LEAST_MIB, min(share, ALONE_MIB))
