"""Memory node without sockets: decodes requests, runs their handlers, encodes replies.

The server passes it frames from ZeroMQ; tests and the in-process transport call it directly. It
never waits. sessions.py handles HELLO and BYE, handlers.py all other requests.

The requests of a channel run in order of arrival. A request parks its channel if it meets a
stripe that another writer holds (which may be stopped, not dead), if the channel has too many
unsent answers, or if its work is done in slices. The node serves other channels meanwhile. It
runs parked requests again, unchanged, one channel after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

from memnode.access import Access
from memnode.context import Channel, Connection, Context, Outcome, Park
from memnode.flow import LONG_NBYTES, Credit
from memnode.handlers import HANDLERS, finish_waits
from memnode.sessions import Sessions
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
    refuse_malformed,
    reply_to,
)
from smbox.wire.header import Buffer
from smbox.wire.messages import Create, Empty, Hello
from smbox.wire.ops import CHANGES, COPIED, Op, Status

HOUSEKEEPING_S: Final = 1.0
"""Interval of the checks for dead local clients and silent remote ones, in seconds."""

POLL_S: Final = 0.001
"""Interval at which versions and held stripes are polled while a request waits, in seconds."""

QUEUE_MAX: Final = 2 * WINDOW_MAX
"""Limit of the queue of a parked channel; a client that respects its window stays below it."""

PARKED_AFTER_S: Final = 0.05
PARKED_INTERVAL_S: Final = 0.5
"""When, and how often, the node sends a PARKED reply: the client then does not reconnect, and
its timeout can name the process that holds the stripe."""

_LOG = logging.getLogger(__name__)

Outgoing = list[tuple[Connection, list[Buffer]]]


class Node:
    """A memory node: sessions, regions and handlers of one memory.

    Attributes:
        context: the state of the node.

    Args:
        memory: owned by this process, recovered.
        now_s: monotonic seconds.
        open_binds: indices of the listening sockets that require no cookie proof.
        access: permissions of the clients that have a key.
        is_connected: returns whether a peer is connected; called for silent peers.
        wake: called, from any thread, when ``tick`` has work to do.
    """

    def __init__(
        self,
        memory: NodeMemory,
        *,
        now_s: float,
        open_binds: frozenset[int] = frozenset(),
        access: Access | None = None,
        is_connected: Callable[[Connection], bool] = lambda _: True,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        context = self.context = Context(memory, access or Access(None), now_s)
        self._sessions = Sessions(context, open_binds, is_connected, wake)
        self._credit = Credit()
        self._housekept_s = now_s

    @property
    def is_idle(self) -> bool:
        """Whether ``tick`` has no work except housekeeping."""
        return not (self.context.pending or self.context.builds.in_progress)

    @property
    def poll_s(self) -> float:
        """Seconds for which the server may wait for messages before it calls ``tick`` again."""
        pending = self.context.pending.values()
        parks = {channel.park for channel in pending if channel.queue}
        if self.context.builds.in_progress or Park.SLICE in parks:
            return 0.0
        is_polling = Park.BUSY in parks or any(channel.waits for channel in pending)
        return POLL_S if is_polling else HOUSEKEEPING_S

    def receive(
        self, connection: Connection, frames: Sequence[Buffer], *, now_s: float, user: str = ""
    ) -> Outgoing:
        """Handle one message of a client with the key ``user``; return the replies."""
        context = self.context
        context.now_s = now_s
        try:
            request = decode_request(frames)
        except RemoteProtocolError as error:
            refusal = refuse_malformed(frames, error)
            return [] if refusal is None else [self._encoded(connection, refusal)]
        channel = context.connected.get(connection)
        if request.op is Op.HELLO:
            reply = self._sessions.open(connection, request, user)
            if reply.status is Status.ACCESS_DENIED and not cast("Hello", request.body).proof:
                return [(connection, encode_reply(reply))]  # a challenge counts as no refusal
        elif channel is None or channel.row.generation != request.generation:
            unknown = RemoteError("send HELLO first", op=request.op.name)
            reply = refuse(request, unknown, status=Status.NO_SESSION)
        elif request.op is Op.BYE:
            self._sessions.remove(channel.row)
            reply = reply_to(request, body=Empty())
        else:
            channel.record(request, now_s)
            context.metrics.requests[request.op] += 1
            context.metrics.received_nbytes += len(request.payload)
            if len(channel.queue) >= QUEUE_MAX:
                _LOG.warning("a client exceeds its window: dropped %s", request.op.name)
                return []
            channel.queue.append(request)
            if len(channel.queue) > 1:  # it is parked
                return []
            channel.notify_s = now_s + PARKED_AFTER_S
            outgoing = self._run(channel)
            context.metrics.parked += bool(channel.queue)
            return outgoing
        return [self._encoded(connection, reply)]

    def tick(self, *, now_s: float) -> Outgoing:
        """Run parked requests again, finish WAITs, and do the housekeeping once a second."""
        context = self.context
        context.now_s = now_s
        since_s = now_s - self._housekept_s
        if since_s >= HOUSEKEEPING_S:
            self._housekept_s = now_s
            context.access.refresh()
            try:
                context.metrics.slots_recovered += context.memory.sweep_slots()
            except OSError as error:  # sessions must expire nevertheless
                _LOG.error("cannot look for dead clients: %s", error)
            self._sessions.close_disconnected()
            self._sessions.expire(paused_s=since_s - HOUSEKEEPING_S)
        pending = list(context.pending.values())
        heads = [(each.key, each.queue[0].body) for each in pending if each.queue]
        context.builds.step_others({(key, getattr(body, "token", b"")) for key, body in heads})
        outgoing = [each for channel in pending for each in self._run(channel)]
        outgoing += [self._encoded(*each) for each in finish_waits(context, pending)]
        for channel in pending:
            if not channel.queue and not channel.waits:
                del context.pending[channel.connection]
        return outgoing

    def close(self) -> None:
        """Discard queued requests unexecuted; the owner of the memory closes it."""
        for channel in list(self.context.connected.values()):
            self._sessions.close(channel)
        self.context.builds.release()

    def _run(self, channel: Channel) -> Outgoing:
        """Run the queue of a channel until a request is parked; return the replies."""
        replies: Outgoing = []
        while channel.queue:
            request = channel.queue.popleft()
            outcome = self._try(channel, request)
            if isinstance(outcome, Park):
                channel.queue.appendleft(request)
                channel.park = outcome
                self.context.pending[channel.connection] = channel
                return replies + self._parked_reply(channel)
            if outcome is not None:
                replies.append(self._encoded(channel.connection, outcome))
        return replies

    def _try(self, channel: Channel, request: Request) -> Outcome:
        """Run a request once; an error becomes a reply that refuses it."""
        channel.busy = None  # it may belong to an earlier request, whose region was freed
        applied = channel.row.applied
        if request.number > applied + (request.op in CHANGES):
            gap = RemoteProtocolError("an earlier change is missing", number=request.number)
            return refuse(request, gap, applied=applied, status=Status.GAP)
        if request.op in COPIED and not channel.unsent.has_room():
            return Park.UNSENT
        context = self.context
        try:
            if channel.user:
                context.access.check(context.registry, channel.key, channel.user, request)
            outcome = HANDLERS[request.op](context, channel, request)
        except StripeBusy as busy:
            channel.busy = busy
            return Park.BUSY
        except SmboxError as error:
            channel.stop_copying()  # of this request, if its key was taken back
            if isinstance(request.body, Create):
                context.builds.release(channel.key, request.body.token)
            return refuse(request, error, applied=channel.row.applied)
        except Exception:  # noqa: BLE001 -- a request must not end the node
            _LOG.exception("request failed: %s", request.op.name)
            failed = RemoteError("the node failed to execute this request; see its log")
            return refuse(request, failed, applied=channel.row.applied)
        if isinstance(outcome, Reply) and len(request.payload) > LONG_NBYTES:
            outcome.numbers = self._credit.after(channel.connection)
        return outcome

    def _parked_reply(self, channel: Channel) -> Outgoing:
        """Return the PARKED reply to the first request of a channel, if it is due."""
        busy, now_s = channel.busy, self.context.now_s
        if channel.park is Park.UNSENT or now_s < channel.notify_s:
            return []
        channel.notify_s = now_s + PARKED_INTERVAL_S
        parked = RemoteError("not done yet")
        if busy is not None:
            parked = RemoteError("another writer holds a stripe", **busy.facts())
        reply = refuse(channel.queue[0], parked, status=Status.PARKED)
        return [self._encoded(channel.connection, reply)]

    def _encoded(self, connection: Connection, reply: Reply) -> tuple[Connection, list[Buffer]]:
        self.context.metrics.sent_nbytes += len(reply.payload)
        if reply.status not in {Status.OK, Status.PARKED}:
            self.context.metrics.refusals[reply.status] += 1
        return connection, encode_reply(reply)
