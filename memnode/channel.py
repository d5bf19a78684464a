"""One remote channel at the node: its session, its answers, and what it has begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from memnode.flow import Unsent
from memnode.sessions import ChannelKey, Connection
from smbox.memory.channels import ChannelRow, Rings
from smbox.memory.recovery import StripeBusy
from smbox.wire.codec import Request
from smbox.wire.messages import Hello

if TYPE_CHECKING:
    from memnode.snapshots import Snapshot


class Park(Enum):
    """Why a request is not answered yet; it is run again as it is."""

    BUSY = 1  # another writer holds a stripe, or makes the region of the same name
    UNSENT = 2  # too many answers of the channel are still being sent: ``wake`` is called
    SLICE = 3  # one slice of its work is done; the next one can be done at once


def key_of(hello: Hello) -> ChannelKey:
    """Return the channel that a HELLO names."""
    return int.from_bytes(hello.client_id, "little"), hello.channel


class Channel:
    """What the node keeps of a channel while it has a session.

    Attributes:
        connection: where its replies go.
        hello: who it is, as it said there.
        key: client id and channel.
        user: the public key that it came with; "" without one.
        heard_s: when it was last heard of, in monotonic seconds.
        row: its row of the channel table.
        block: the same for the native library, for changes without an answer.
        queue: requests in order of arrival, the first of them parked.
        park: why it is.
        busy: of the last try that met a held stripe: which one.
        notice_s: when its client is told so, in monotonic seconds.
        unsent: answers that are on their way.
        snapshot: the copy that its SNAPSHOT has begun.

    Args:
        connection: where its replies go.
        hello: who it is, as it said there.
        node: name of the memory node.
        row: its row of the channel table.
        user: the public key that it came with; "" without one.
        wake: called, from any thread, when a request parked as UNSENT can go on.
    """

    def __init__(
        self,
        connection: Connection,
        hello: Hello,
        node: str,
        row: ChannelRow,
        user: str,
        wake: Callable[[], object],
    ) -> None:
        self.connection = connection
        self.hello = hello
        self.key = key_of(hello)
        self.user = user
        self.heard_s = 0.0
        self.row = row
        self.block = row.block()
        self.queue: deque[Request] = deque()
        self.park: Park | None = None
        self.busy: StripeBusy | None = None
        self.notice_s = 0.0
        self.unsent = Unsent(wake)
        self.snapshot: Snapshot | None = None
        self._node = node
        self._rings: Rings | None = None

    @property
    def rings(self) -> Rings:
        """The old bytes that changes of the channel answered."""
        if self._rings is None:
            self._rings = Rings(self._node, self.row)
        return self._rings

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
