"""One remote channel at the node: its applied number, its answers, and its parked requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memnode.commands import Connection
from memnode.unsent import Unsent, nobody
from memnode.waits import Wait
from smbox.memory.change import Receipt
from smbox.memory.channels import ChannelRow, RingFile
from smbox.wire.codec import Reply, Request


class Task(Protocol):
    """A request under way; tried until it gives its reply."""

    @property
    def request(self) -> Request:
        """The request."""
        ...

    def advance(self) -> Reply | Wait | None:
        """Do what can be done now, without waiting.

        Returns:
            The reply; None: try again later; a Wait: others may pass, it is answered when
            it ends.

        Raises:
            StripeBusy: a local client holds a stripe; try again later.
            SmboxError: the request is refused.
        """
        ...

    def abandon(self) -> None:
        """Give up: leave nothing half made."""
        ...


class Channel:
    """What the lane keeps of a channel while it has a session.

    Attributes:
        connection: where replies go.
        client_id: of the client.
        row: its row of the channel table.
        queue: tasks in order of arrival; all but the first wait for those before them.
        unsent: its answers that are on their way.
        ring: what it keeps answers in, once there was one.

    Args:
        node: name of the memory node.
        wake: called, from any thread, when ``unsent`` has room for which somebody waits.
    """

    def __init__(
        self,
        node: str,
        connection: Connection,
        client_id: int,
        row: ChannelRow,
        wake: Callable[[], None] = nobody,
    ) -> None:
        self.connection = connection
        self.client_id = client_id
        self.row = row
        self.queue: deque[Task] = deque()
        self.unsent = Unsent(wake)
        self.ring: RingFile | None = None
        self._node = node

    @property
    def applied(self) -> int:
        """Number of the last change applied for this channel."""
        return self.row.applied

    def receipt(self, number: int, *, answers: bool) -> Receipt:
        """Return by what change ``number`` is known again.

        Raises:
            OutOfMemoryError: no room for the channel's ring of answers.
        """
        return Receipt(self.row, number, self._opened_ring() if answers else None)

    def answers(self, number: int, count: int = 1) -> NDArray[np.uint8] | None:
        """View the old bytes that changes answered, in the ring; see ``RingFile.answers``."""
        return self._opened_ring().answers(number, count)

    def close(self) -> None:
        """Forget the parked requests, unexecuted, and drop the ring's mapping."""
        while self.queue:
            self.queue.popleft().abandon()
        self.unsent.close()
        if self.ring is not None:
            self.ring.close()
            self.ring = None

    def _opened_ring(self) -> RingFile:
        if self.ring is None:
            self.ring = RingFile.open(self._node, self.row.index)
        return self.ring
