"""Runs the requests of all channels through their handlers, one after another.

Within a channel requests run in order of arrival. One that meets a stripe held by another
writer (which may be stopped, not dead) parks its channel, and the node goes on with others; so
does one whose answer would exceed what the channel may have unsent, or whose work is done in
slices. A parked request is run again as it is, in rotation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from memnode.channel import Channel, Park
from memnode.context import Context, Outcome
from memnode.credit import Credit
from memnode.handlers import HANDLERS
from memnode.handlers_reads import end_wait
from memnode.sessions import ChannelKey, Connection, Session
from memnode.unsent import nobody
from memnode.waits import POLL_S, Wait, Waits
from smbox.config import WINDOW_MAX
from smbox.errors import RemoteError, RemoteProtocolError, SmboxError
from smbox.memory.busy import StripeBusy
from smbox.memory.node_memory import NodeMemory
from smbox.wire.codec import Reply, Request, refuse
from smbox.wire.ops import CHANGES, COPIED
from smbox.wire.status import Status

QUEUE_MAX: Final = 2 * WINDOW_MAX
"""Requests kept of a parked channel; a client within its window never has as many."""

NOTICE_AFTER_S: Final = 0.05
NOTICE_S: Final = 0.5
"""When, and how often, a client is told that its request is parked: it need not reconnect, and
if its patience ends it can name the process that holds the stripe."""

_LOG = logging.getLogger(__name__)

Replies = list[tuple[Connection, Reply]]


class Dispatcher:
    """Runs requests on the memory of a node.

    Args:
        memory: owned by this process.
        context: for the handlers.
        wake: called, from any thread, when a channel with unsent answers can go on.
    """

    def __init__(
        self, memory: NodeMemory, context: Context, wake: Callable[[], None] = nobody
    ) -> None:
        self.waits = Waits()
        self._memory = memory
        self._context = context
        self._wake = wake
        self._credit = Credit()
        self._channels: dict[Connection, Channel] = {}
        self._parked: dict[Connection, Channel] = {}

    @property
    def parked_count(self) -> int:
        """How many channels are parked."""
        return len(self._parked)

    @property
    def patience_s(self) -> float | None:
        """How soon ``advance`` has something to do; None: when it is told."""
        parks = {channel.park for channel in self._parked.values()}
        if len(self._context.unattended) or Park.SLICE in parks:
            return 0.0
        return POLL_S if Park.BUSY in parks or len(self.waits) else None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is parked, being made or waited for."""
        return not (self._parked or len(self._context.unattended) or len(self.waits))

    def channel(self, connection: Connection) -> Channel | None:
        """Return the channel of a connection, if it has one."""
        return self._channels.get(connection)

    def open(self, session: Session) -> tuple[Channel, bool]:
        """Take up a channel on its present connection.

        Returns:
            The channel, and whether the node knew it before.

        Raises:
            LimitError: no room for another channel.
        """
        is_known = self._memory.channels.find(*session.key) is not None
        row = self._memory.channels.claim(*session.key)
        row.generation = session.generation
        channel = Channel(self._memory.name, session, row, self._wake)
        self._channels[session.connection] = channel
        return channel, is_known

    def drop(self, connection: Connection) -> None:
        """Discard unexecuted all that is held of a connection; its channel stays known.

        Its scratch regions go; for one in the making, see ``Unattended``.
        """
        self.waits.drop(connection)
        self._parked.pop(connection, None)
        channel = self._channels.pop(connection, None)
        if channel is None:
            return
        if channel.build is not None:
            self._context.unattended.add(channel.build, now_s=self._context.now_s)
            channel.build = None
        channel.close()
        self._context.registry.drop_scratch(channel.session.key)

    def release(self, key: ChannelKey) -> None:
        """Forget a channel for good: its numbers, its answers, and what it has begun."""
        self._context.unattended.release(key)
        self._context.registry.drop_unpublished(key)
        row = self._memory.channels.find(*key)
        if row is not None:
            self._memory.channels.release(row)

    def submit(self, channel: Channel, request: Request) -> Replies:
        """Run a request, or queue it behind those of its channel that are parked."""
        connection = channel.session.connection
        self._context.metrics.request(request.op, len(request.payload))
        if channel.queue:
            if len(channel.queue) >= QUEUE_MAX:
                _LOG.warning("a client sends beyond its window: %s dropped", request.op.name)
            else:
                channel.queue.append(request)
            return []
        outcome = self._try(channel, request)
        if isinstance(outcome, Park):
            channel.queue.append(request)
            channel.park = outcome
            channel.notice_s = self._context.now_s + NOTICE_AFTER_S
            self._parked[connection] = channel
            self._context.metrics.parked += 1
        return [(connection, outcome)] if isinstance(outcome, Reply) else []

    def advance(self) -> Replies:
        """Try the parked requests again, and end the waits that are over."""
        replies: Replies = []
        self._context.unattended.step(now_s=self._context.now_s)
        for channel in list(self._parked.values()):
            replies += self._run(channel)
        if len(self.waits):
            ends = self.waits.poll(self._version_of, now_s=self._context.now_s)
            replies += [(end.wait.connection, end_wait(end)) for end in ends]
        return replies

    def close(self) -> None:
        """Discard unexecuted all that is held."""
        for connection in list(self._channels):
            self.drop(connection)
        self._context.unattended.close()
        self._context.lock_files.close()

    def _run(self, channel: Channel) -> Replies:
        """Run the requests of a parked channel until one has to be tried again later."""
        replies: Replies = []
        connection = channel.session.connection
        while channel.queue:
            outcome = self._try(channel, channel.queue[0])
            if isinstance(outcome, Park):
                channel.park = outcome
                return replies + self._notice(channel)
            channel.queue.popleft()
            if isinstance(outcome, Reply):
                replies.append((connection, outcome))
        del self._parked[connection]
        return replies

    def _try(self, channel: Channel, request: Request) -> Outcome:
        """Run a request once; whatever goes wrong in it becomes its reply."""
        applied = channel.row.applied
        if request.op not in CHANGES and request.number > applied:
            gap = RemoteProtocolError("changes are missing before this", number=request.number)
            return refuse(request, gap, applied=applied, status=Status.GAP)
        if request.op in COPIED and not channel.unsent.ask_for_room():
            return Park.UNSENT
        try:
            outcome = HANDLERS[request.op](self._context, channel, request)
            if isinstance(outcome, Wait):
                self.waits.add(outcome)
        except StripeBusy as busy:
            channel.busy = busy
            return Park.BUSY
        except SmboxError as error:
            return refuse(request, error, applied=channel.row.applied)
        except Exception:  # noqa: BLE001 -- no request may end the node
            _LOG.exception("request failed: %s", request.op.name)
            failed = RemoteError("the node failed at this request; its log says how")
            return refuse(request, failed, applied=channel.row.applied)
        if isinstance(outcome, Reply):
            connection = channel.session.connection
            outcome.numbers = self._credit.after(connection, len(request.payload))
        return outcome

    def _notice(self, channel: Channel) -> Replies:
        """Say why the first request of a channel is parked, if it is time to."""
        busy, channel.busy = channel.busy, None
        now_s = self._context.now_s
        if channel.park is Park.UNSENT or now_s < channel.notice_s:
            return []
        channel.notice_s = now_s + NOTICE_S
        parked = RemoteError("not done yet")
        if busy is not None:
            parked = RemoteError(
                "another writer holds a stripe",
                region=busy.region.spec.name,
                stripe=busy.stripe,
                holder_pid=busy.holder_pid(),
            )
        reply = refuse(channel.queue[0], parked, status=Status.PARKED)
        return [(channel.session.connection, reply)]

    def _version_of(self, address: int) -> int:
        return self._context.registry.locate(address).version()
