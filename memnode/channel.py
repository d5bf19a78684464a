"""One remote channel at the node: its session, its answers, and what it has begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memnode.sessions import Session
from memnode.unsent import Unsent, nobody
from smbox.errors import SessionExpiredError
from smbox.memory import orders
from smbox.memory.channels import ChannelRow, Rings
from smbox.memory.recovery import StripeBusy
from smbox.wire.codec import Request

if TYPE_CHECKING:
    from memnode.creation import Build
    from memnode.snapshots import Snapshot


class Park(Enum):
    """Why a request is not answered yet; it is run again as it is."""

    BUSY = 1  # another writer holds a stripe, or makes the region of the same name
    UNSENT = 2  # too many answers of the channel are still being sent: ``wake`` is called
    SLICE = 3  # one slice of its work is done; the next one can be done at once


class Channel:
    """What the node keeps of a channel while it has a session.

    Attributes:
        session: the connection, and who said HELLO there.
        row: its row of the channel table.
        block: the same for the native library, for changes without an answer.
        queue: requests in order of arrival, the first of them parked.
        park: why it is.
        busy: of the last try that met a held stripe: which one.
        notice_s: when its client is told so, in monotonic seconds.
        unsent: answers that are on their way.
        build: the region that its CREATE has begun to make.
        snapshot: the copy that its SNAPSHOT has begun.

    Args:
        node: name of the memory node.
        session: the connection, and who said HELLO there.
        row: its row of the channel table.
        wake: called, from any thread, when a request parked as UNSENT can go on.
    """

    def __init__(
        self, node: str, session: Session, row: ChannelRow, wake: Callable[[], None] = nobody
    ) -> None:
        self.session = session
        self.row = row
        self.block = orders.channel_block(row.words, row.index)
        self.queue: deque[Request] = deque()
        self.park: Park | None = None
        self.busy: StripeBusy | None = None
        self.notice_s = 0.0
        self.unsent = Unsent(wake)
        self.build: Build | None = None
        self.snapshot: Snapshot | None = None
        self._node = node
        self._rings: Rings | None = None

    def block_for(self, number: int, count: int, answer_nbytes: int) -> orders.Block:
        """Return the block for changes that answer at most so many bytes each; 0: nothing.

        Raises:
            OutOfMemoryError: no room for the channel's ring of answers; nothing changed.
        """
        if not answer_nbytes:
            return self.block
        return self._opened_rings().ring_for(number, count, answer_nbytes).block

    def answers(self, number: int, count: int) -> NDArray[np.uint8] | None:
        """View the old bytes that changes answered; None where they are in pieces, or gone."""
        return self._opened_rings().answers(number, count)

    def answer(self, number: int) -> NDArray[np.uint8]:
        """View the old bytes that one change answered.

        Raises:
            SessionExpiredError: they are kept no longer.
        """
        found = self.answers(number, 1)
        if found is None:
            raise SessionExpiredError(
                "the answer of this change is kept no longer", number=number, outcome="unknown"
            )
        return found

    def end_snapshot(self) -> None:
        """Release the stripes that a snapshot holds, if one was begun."""
        if self.snapshot is not None:
            self.snapshot.end()
            self.snapshot = None

    def close(self) -> None:
        """Discard, unexecuted, what is queued, and give up what was begun."""
        self.queue.clear()
        self.unsent.close()
        self.end_snapshot()
        if self._rings is not None:
            self._rings.close()
            self._rings = None

    def _opened_rings(self) -> Rings:
        if self._rings is None:
            self._rings = Rings(self._node, self.row)
        return self._rings
