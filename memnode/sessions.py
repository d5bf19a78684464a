"""Sessions: each channel of a client on the connection that it said HELLO on last.

What the node keeps of a channel meanwhile is here, too: its answers, and what it has begun. No
socket or clock in here: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from memnode.flow import Unsent
from smbox.errors import LimitError
from smbox.memory.channels import ChannelRow, Rings
from smbox.memory.commit import StripeBusy
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import Hold
from smbox.wire.codec import Request
from smbox.wire.messages import Hello
from smbox.wire.ops import Op

Connection = tuple[int, bytes]
"""Index of the listening socket, and ZeroMQ's id of the peer there."""

ChannelKey = tuple[int, int]
"""Client id as a number, and the client's number of the channel."""

SESSIONS_MAX: Final = 1024
EXPIRY_S: Final = 300.0
"""Silence after which a channel is forgotten."""

HELD_S: Final = 5.0
"""How long stripes are kept while another one is waited for; then others have their turn. A
client that has given up does not say so at once."""


class Park(Enum):
    """Why a request is not answered yet; it is run again as it is."""

    BUSY = 1  # another writer holds a stripe, or makes the region of the same name
    UNSENT = 2  # too many answers of the channel are still being sent: ``wake`` is called
    SLICE = 3  # one slice of its work is done; the next one can be done at once


def key_of(hello: Hello) -> ChannelKey:
    """Return the channel that a HELLO names."""
    return int.from_bytes(hello.client_id, "little"), hello.channel


class Snapshot:
    """What a SNAPSHOT in the making holds.

    Attributes:
        done: bytes that are copied.

    Args:
        region: what is copied.
        first: first byte of its data that is wanted.
        limit: byte behind the last.
        now_s: monotonic seconds.

    Raises:
        ConfigError: the region has no locks.
    """

    def __init__(self, region: MappedRegion, first: int, limit: int, now_s: float) -> None:
        self.done = 0
        self._locks = LockFile(region.node)
        self._hold = Hold(region, self._locks, first, limit)
        self._limit_s = now_s + HELD_S

    def hold(self, now_s: float) -> None:
        """Hold all stripes.

        Raises:
            StripeBusy: another writer holds a stripe; those before it stay held, for a while.
            RegionFreedError: the region was freed.
        """
        try:
            self._hold.take()
        except StripeBusy:
            if now_s >= self._limit_s:
                self._hold.release()
                self._limit_s = now_s + HELD_S
            raise

    def end(self) -> None:
        """Release the stripes."""
        self._locks.close()


class Channel:
    """What the node keeps of a channel while it has a session.

    Attributes:
        connection: where its replies go.
        hello: who it is, as it said there.
        key: client id and channel.
        user: the public key that it came with; "" without one.
        heard_s: when it was last heard of, in monotonic seconds.
        looked_s: when it was last seen whether its peer is there, in monotonic seconds.
        acknowledged: the number up to which its client said that it has all replies.
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
        self.looked_s = 0.0
        self.acknowledged = 0
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
    def is_answered(self) -> bool:
        """Whether its client has said that it has all replies, and asks for none again."""
        return self.acknowledged >= self.row.applied

    def hear(self, request: Request, now_s: float) -> None:
        """Note that a request came, and what it says of the replies before it."""
        self.heard_s = now_s
        if request.op is not Op.WAIT:  # its version is one that it waits for
            self.acknowledged = max(self.acknowledged, request.version)

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


class Sessions:
    """The channels that are connected, and those that the node expects to come back.

    Attributes:
        by_connection: the connected ones.

    Args:
        sessions_max: how many of those there may be.
        is_connected: tells whether a peer is there.
    """

    def __init__(
        self,
        sessions_max: int = SESSIONS_MAX,
        is_connected: Callable[[Connection], bool] = lambda _: True,
    ) -> None:
        self.by_connection: dict[Connection, Channel] = {}
        self._sessions_max = sessions_max
        self._is_connected = is_connected
        self._absent: dict[ChannelKey, float] = {}  # and when they were last heard of

    def expect(self, keys: Iterable[ChannelKey], *, now_s: float) -> None:
        """Expect channels of an earlier run of the node to come back before they expire."""
        self._absent.update(dict.fromkeys(keys, now_s))

    @property
    def is_full(self) -> bool:
        """Whether there are as many sessions as may be."""
        return len(self.by_connection) >= self._sessions_max

    def replaced_by(self, connection: Connection, key: ChannelKey) -> list[Channel]:
        """Return the channels whose sessions have to end before one can begin.

        They are the former ones of that connection and of that channel.

        Raises:
            LimitError: the node has as many sessions as it takes.
        """
        known = self.by_connection.values()
        replaced = [each for each in known if each.connection == connection or each.key == key]
        if len(known) - len(replaced) >= self._sessions_max:
            raise LimitError("the node has all the sessions it takes", limit=self._sessions_max)
        return replaced

    def begin(self, channel: Channel) -> None:
        """Begin the session of a channel."""
        self.by_connection[channel.connection] = channel
        self._absent.pop(channel.key, None)

    def end(self, channel: Channel) -> None:
        """End the session of a channel, which may come back until it expires."""
        del self.by_connection[channel.connection]
        self._absent[channel.key] = channel.heard_s

    def forget(self, key: ChannelKey) -> None:
        """Expect a channel no longer."""
        self._absent.pop(key, None)

    def gone(self, silent_s: float, *, now_s: float) -> list[Channel]:
        """Return the channels whose peers are gone, of those silent for so long.

        No peer is looked for more often.
        """
        limit_s = now_s - silent_s
        known = self.by_connection.values()
        silent = [each for each in known if max(each.heard_s, each.looked_s) <= limit_s]
        for channel in silent:
            channel.looked_s = now_s
        return [each for each in silent if not self._is_connected(each.connection)]

    def expired(self, *, now_s: float) -> list[tuple[ChannelKey, Channel | None]]:
        """Return the channels that were silent for too long, connected or not."""
        limit_s = now_s - EXPIRY_S
        known = self.by_connection.values()
        found: list[tuple[ChannelKey, Channel | None]] = [
            (channel.key, channel) for channel in known if channel.heard_s <= limit_s
        ]
        absent = [(key, None) for key, heard_s in self._absent.items() if heard_s <= limit_s]
        return found + absent
