"""How much data each channel may have under way to the node: its share of what that can hold.

ZeroMQ reads requests ahead and counts them, not their bytes. So the clients keep to a number of
bytes, which the reply to a long request tells: much for who is alone, little for each of many.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from memnode.commands import Connection
from smbox.config import WINDOW_MAX

RECENT_MAX: Final = 32
"""Long requests that are remembered: who sent one of these counts as one that sends."""

FIRST_MIB: Final = 4
"""For who has nothing under way, because many may begin at the same moment."""

LONG_NBYTES: Final = (FIRST_MIB << 20) // WINDOW_MAX
"""Of requests that bring no more, a whole window has room anyway."""

ALONE_MIB: Final = WINDOW_MAX
LEAST_MIB: Final = 2
SHARED_MIB: Final = 20
"""Among all that send. The node's memory grows by some 25 MiB where eight begin at once."""


class Rooms:
    """Remembers who sent the last long requests."""

    def __init__(self) -> None:
        self._recent: deque[Connection] = deque(maxlen=RECENT_MAX)

    def after(self, connection: Connection, nbytes: int) -> int:
        """Return what a channel may have under way after a request that brought ``nbytes``.

        Returns:
            MiB; 0: as much as before.
        """
        if nbytes <= LONG_NBYTES:
            return 0
        self._recent.append(connection)
        share = SHARED_MIB // len(set(self._recent))
        return max(LEAST_MIB, min(share, ALONE_MIB))
