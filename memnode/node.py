"""The node without its sockets: frames in, frames out, and what has to be done in between.

The server feeds it from ZeroMQ, tests and the in-process transport feed it directly. It never
waits. HELLO and BYE are for sessions.py, what a request of a session does is in handlers.py.

Within a channel requests run in order of arrival. One that meets a stripe held by another
writer (which may be stopped, not dead) parks its channel, and the node goes on with others; so
does one whose answer would exceed what the channel may have unsent, or whose work is done in
slices. A parked request is run again as it is, in rotation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from memnode.access import Access
from memnode.context import Channel, Connection, Context, Outcome, Park
from memnode.flow import LONG_NBYTES, Credit
from memnode.handlers import HANDLERS, end_waits
from memnode.sessions import SESSIONS_MAX, Sessions
from smbox.config import WINDOW_MAX
from smbox.errors import RemoteError, RemoteProtocolError, SmboxError
from smbox.memory.commit import StripeBusy
from smbox.memory.node_memory import NodeMemory
from smbox.wire.codec import (
    Reply,
    Request,
    decode_request,
    encode_reply,
    refuse,
    refuse_garbage,
    reply_to,
)
from smbox.wire.header import Buffer
from smbox.wire.messages import Create, Empty, Hello
from smbox.wire.ops import CHANGES, COPIED, Op
from smbox.wire.status import Status

HOUSEKEEPING_S: Final = 1.0
"""How often dead local clients and silent remote ones are looked for."""

POLL_S: Final = 0.001
"""How often versions and locked stripes are looked at while somebody waits, in seconds."""

QUEUE_MAX: Final = 2 * WINDOW_MAX
"""Requests kept of a parked channel; a client within its window never has as many."""

NOTICE_AFTER_S: Final = 0.05
NOTICE_S: Final = 0.5
"""When, and how often, a client is told that its request is parked: it need not reconnect, and
if its patience ends it can name the process that holds the stripe."""

_LOG = logging.getLogger(__name__)

Outgoing = list[tuple[Connection, list[Buffer]]]


class Node:
    """A memory node: sessions, regions and handlers over one memory.

    Attributes:
        metrics: what it counts.

    Args:
        memory: owned by this process, recovered.
        now_s: monotonic seconds.
        sessions_max: sessions that there may be.
        open_binds: indices of the listening sockets that ask for no cookie.
        access: of the clients that come with a key.
        is_connected: tells whether a peer is there; asked of those that are silent.
        wake: called, from any thread, when ``tick`` has something to do.
    """

    def __init__(
        self,
        memory: NodeMemory,
        *,
        now_s: float,
        sessions_max: int = SESSIONS_MAX,
        open_binds: frozenset[int] = frozenset(),
        access: Access | None = None,
        is_connected: Callable[[Connection], bool] = lambda _: True,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        context = self._context = Context(memory, access or Access(None), now_s)
        self._sessions = Sessions(context, sessions_max, open_binds, is_connected, wake)
        self._credit = Credit()
        self._housekept_s = now_s
        self.metrics = context.metrics

    @property
    def is_at_rest(self) -> bool:
        """Whether ``tick`` has nothing to do but to keep house."""
        return not (self._context.pending or self._context.builds.under_way)

    @property
    def patience_s(self) -> float:
        """How long the server may wait for messages before it calls ``tick`` again."""
        pending = self._context.pending.values()
        parks = {channel.park for channel in pending if channel.queue}
        if self._context.builds.under_way or Park.SLICE in parks:
            return 0.0
        is_polling = Park.BUSY in parks or any(channel.waits for channel in pending)
        return POLL_S if is_polling else HOUSEKEEPING_S

    def receive(
        self, connection: Connection, frames: Sequence[Buffer], *, now_s: float, user: str = ""
    ) -> Outgoing:
        """Handle one message, of a client with the key ``user``; returns what it leads to."""
        context = self._context
        context.now_s = now_s
        reply: Reply | None
        try:
            request = decode_request(frames)
        except RemoteProtocolError as error:
            reply = refuse_garbage(frames, error)
            return [] if reply is None else [self._encoded(connection, reply)]
        channel = context.connected.get(connection)
        if request.op is Op.HELLO:
            reply = self._sessions.greet(connection, request, user)
            if reply.status is Status.ACCESS_DENIED and not cast("Hello", request.body).proof:
                return [(connection, encode_reply(reply))]  # a challenge refuses nobody
        elif channel is None or channel.hello.generation != request.generation:
            stranger = RemoteError("say HELLO first", op=request.op.name)
            reply = refuse(request, stranger, status=Status.NO_SESSION)
        elif request.op is Op.BYE:
            self._sessions.forget(channel.row)
            reply = reply_to(request, body=Empty())
        else:
            channel.hear(request, now_s)
            self.metrics.requests[request.op] += 1
            self.metrics.received_nbytes += len(request.payload)
            reply = self._submit(channel, request)
        return [] if reply is None else [self._encoded(connection, reply)]

    def tick(self, *, now_s: float) -> Outgoing:
        """Go on with what is parked, end waits, and keep house once a second."""
        context = self._context
        context.now_s = now_s
        if now_s - self._housekept_s >= HOUSEKEEPING_S:
            self._housekept_s = now_s
            self._keep_house()
        context.builds.step_detached(now_s=now_s)
        pending = list(context.pending.values())
        replies = [(each.connection, reply) for each in pending for reply in self._run(each)]
        replies += end_waits(context, pending)
        for channel in pending:
            if not channel.queue and not channel.waits:
                del context.pending[channel.connection]
        return [self._encoded(*each) for each in replies]

    def close(self) -> None:
        """Discard unexecuted what is held; the memory stays with its owner."""
        for channel in list(self._context.connected.values()):
            self._sessions.drop(channel)
        self._context.builds.release()

    def facts(self) -> Mapping[str, object]:
        """Return the node's figures, as STATS gives them."""
        return self._context.facts()

    def _keep_house(self) -> None:
        self._context.access.refresh()
        self.metrics.slots_recovered += self._context.memory.sweep_slots()
        self._sessions.drop_gone()
        self._sessions.expire()

    def _submit(self, channel: Channel, request: Request) -> Reply | None:
        """Run a request, or queue it behind those of its channel that are parked."""
        if channel.queue:
            if len(channel.queue) >= QUEUE_MAX:
                _LOG.warning("a client sends beyond its window: %s dropped", request.op.name)
            else:
                channel.queue.append(request)
            return None
        outcome = self._try(channel, request)
        if isinstance(outcome, Park):
            channel.queue.append(request)
            channel.park = outcome
            channel.notice_s = self._context.now_s + NOTICE_AFTER_S
            self._context.pending[channel.connection] = channel
            self.metrics.parked += 1
            return None
        return outcome

    def _run(self, channel: Channel) -> list[Reply]:
        """Run the requests of a parked channel until one has to be tried again later."""
        replies: list[Reply] = []
        while channel.queue:
            outcome = self._try(channel, channel.queue[0])
            if isinstance(outcome, Park):
                channel.park = outcome
                return replies + self._notice(channel)
            channel.queue.popleft()
            if outcome is not None:
                replies.append(outcome)
        return replies

    def _try(self, channel: Channel, request: Request) -> Outcome:
        """Run a request once; whatever goes wrong in it becomes its reply."""
        channel.busy = None  # it may be of a request before, whose region was freed since
        applied = channel.row.applied
        if request.number > applied + (request.op in CHANGES):
            gap = RemoteProtocolError("changes are missing before this", number=request.number)
            return refuse(request, gap, applied=applied, status=Status.GAP)
        if request.op in COPIED and not channel.unsent.ask_for_room():
            return Park.UNSENT
        context = self._context
        try:
            if channel.user:
                self._check(channel, request)
            outcome = HANDLERS[request.op](context, channel, request)
        except StripeBusy as busy:
            channel.busy = busy
            return Park.BUSY
        except SmboxError as error:
            return refuse(request, error, applied=channel.row.applied)
        except Exception:  # noqa: BLE001 -- no request may end the node
            _LOG.exception("request failed: %s", request.op.name)
            failed = RemoteError("the node failed at this request; its log says how")
            return refuse(request, failed, applied=channel.row.applied)
        if isinstance(outcome, Reply) and len(request.payload) > LONG_NBYTES:
            outcome.numbers = self._credit.after(channel.connection)
        return outcome

    def _check(self, channel: Channel, request: Request) -> None:
        """Check that a client with a key may do this, or may still do what it has begun."""
        context = self._context
        try:
            context.access.check(context.registry, channel.key, channel.user, request)
        except SmboxError:
            if isinstance(request.body, Create):
                context.builds.refuse(request.body, channel.key)
            raise

    def _notice(self, channel: Channel) -> list[Reply]:
        """Say why the first request of a channel is parked, if it is time to."""
        busy, now_s = channel.busy, self._context.now_s
        if channel.park is Park.UNSENT or now_s < channel.notice_s:
            return []
        channel.notice_s = now_s + NOTICE_S
        parked = RemoteError("not done yet")
        if busy is not None:
            parked = RemoteError("another writer holds a stripe", **busy.facts())
        return [refuse(channel.queue[0], parked, status=Status.PARKED)]

    def _encoded(self, connection: Connection, reply: Reply) -> tuple[Connection, list[Buffer]]:
        self.metrics.sent_nbytes += len(reply.payload)
        if reply.status not in {Status.OK, Status.PARKED}:
            self.metrics.refusals[reply.status] += 1
        return connection, encode_reply(reply)
