"""The node without its sockets: frames in, frames out, and what has to be done in between.

The server feeds it from ZeroMQ, tests and the in-process transport feed it directly. It owns
the memory and never waits. It begins and ends sessions; what a request of a session does is in
handlers.py.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from memnode.access import Access
from memnode.context import Context
from memnode.dispatch import Dispatcher, Replies
from memnode.flow import ANSWERS_NBYTES, FIRST_MIB, LENT_NBYTES
from memnode.sessions import (
    SESSIONS_MAX,
    Channel,
    ChannelKey,
    Connection,
    Park,
    Sessions,
    key_of,
)
from memnode.waits import POLL_S
from smbox.config import WINDOW_MAX
from smbox.errors import (
    AccessDeniedError,
    PeerLostError,
    RemoteError,
    RemoteProtocolError,
    SmboxError,
)
from smbox.memory.layout import FORMAT, STRIPE_NBYTES, Ring
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
from smbox.wire.header import LONG_NBYTES_MAX, REQUEST_NBYTES_MAX, Buffer
from smbox.wire.messages import Empty, Hello, Welcome
from smbox.wire.ops import Op
from smbox.wire.proving import challenge_of, client_proof, node_proof
from smbox.wire.status import Status

HOUSEKEEPING_S: Final = 1.0
"""How often dead local clients and silent remote ones are looked for."""

SILENT_S: Final = 5.0
"""Silence after which a remote client is looked for, and again as often."""

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
        self._memory = memory
        self._challenge = challenge_of(memory.cookie, memory.name, memory.superblock.uuid)
        self._open_binds = open_binds
        self._wake = wake
        self._started_s = self._housekept_s = now_s
        self._context = Context(memory, self.facts, access or Access(None), now_s)
        self.metrics = self._context.metrics
        self._dispatcher = Dispatcher(self._context)
        self._sessions = Sessions(sessions_max, is_connected)
        rows = memory.channels.rows()
        self._sessions.expect([(row.client_id, row.channel) for row in rows], now_s=now_s)

    @property
    def is_at_rest(self) -> bool:
        """Whether ``tick`` has nothing to do but to keep house."""
        context = self._context
        return not (
            self._dispatcher.parked or context.builds.under_way or context.waits.by_connection
        )

    @property
    def patience_s(self) -> float:
        """How long the server may wait for messages before it calls ``tick`` again."""
        parks = {channel.park for channel in self._dispatcher.parked.values()}
        if self._context.builds.under_way or Park.SLICE in parks:
            return 0.0
        is_polling = Park.BUSY in parks or self._context.waits.by_connection
        return POLL_S if is_polling else HOUSEKEEPING_S

    def receive(
        self, connection: Connection, frames: Sequence[Buffer], *, now_s: float, user: str = ""
    ) -> Outgoing:
        """Handle one message, of a client with the key ``user``; returns what it leads to."""
        self._context.now_s = now_s
        reply: Reply | None
        try:
            request = decode_request(frames)
        except RemoteProtocolError as error:
            reply = refuse_garbage(frames, error)
            return [] if reply is None else self._encoded([(connection, reply)])
        channel = self._sessions.by_connection.get(connection)
        if request.op is Op.HELLO:
            reply = self._greet(connection, request, user)
            if reply.status is Status.ACCESS_DENIED and not cast("Hello", request.body).proof:
                return [(connection, encode_reply(reply))]  # a challenge refuses nobody
        elif channel is None or channel.hello.generation != request.generation:
            stranger = RemoteError("say HELLO first", op=request.op.name)
            reply = refuse(request, stranger, status=Status.NO_SESSION)
        elif request.op is Op.BYE:
            self._forget(channel.key, channel)
            reply = reply_to(request, body=Empty())
        else:
            channel.hear(request, now_s)
            self.metrics.requests[request.op] += 1
            self.metrics.received_nbytes += len(request.payload)
            reply = self._dispatcher.submit(channel, request)
        return [] if reply is None else self._encoded([(connection, reply)])

    def tick(self, *, now_s: float) -> Outgoing:
        """Go on with what is parked, end waits, and keep house once a second."""
        self._context.now_s = now_s
        if now_s - self._housekept_s >= HOUSEKEEPING_S:
            self._housekept_s = now_s
            self._keep_house(now_s)
        return self._encoded(self._dispatcher.advance())

    def close(self) -> None:
        """Discard unexecuted what is held; the memory stays with its owner."""
        for channel in list(self._sessions.by_connection.values()):
            self._drop(channel)
        self._context.builds.release()

    def facts(self) -> Mapping[str, object]:
        """Return the node's figures, as STATS gives them."""
        superblock = self._memory.superblock
        return {
            "name": self._memory.name,
            "pid": os.getpid(),
            "incarnation": superblock.incarnation,
            "uptime_s": self._context.now_s - self._started_s,
            "memory_nbytes": superblock.memory_nbytes,
            "used_nbytes": self._memory.used_nbytes(),
            "regions": len(self._context.registry),
            "sessions": len(self._sessions.by_connection),
            "channels": len(self._memory.channels),
            "parked_now": len(self._dispatcher.parked),
            "waits_now": len(self._context.waits),
            **self.metrics.facts(),
        }

    def _greet(self, connection: Connection, request: Request, user: str) -> Reply:
        """Take up a channel on its present connection, or refuse it."""
        hello = cast("Hello", request.body)
        try:
            self._check_hello(connection, hello)
            known = self._memory.channels.find(*key_of(hello))
            if known is not None and known.generation > hello.generation:
                later = RemoteError("a later connection of this channel has said HELLO")
                return refuse(request, later, status=Status.NO_SESSION)
            if self._sessions.is_full:
                self._drop_gone(HOUSEKEEPING_S)
            for former in self._sessions.replaced_by(connection, key_of(hello)):
                self._drop(former)
            row = known or self._memory.channels.claim(*key_of(hello))
        except SmboxError as error:
            _LOG.info("refused pid %d of %r: %s", hello.pid, hello.host, error)
            return refuse(request, error)
        row.generation = hello.generation
        channel = Channel(connection, hello, self._memory.name, row, user, self._wake)
        channel.heard_s = self._context.now_s
        self._sessions.begin(channel)
        welcome = self._welcome(hello, row.applied, is_known=known is not None)
        return Reply(request.op, request=request.request, body=welcome)

    def _check_hello(self, connection: Connection, hello: Hello) -> None:
        """Keep a client away that means another memory, or may not use this one.

        Another memory had this name or address before.
        """
        if hello.node_uuid not in {b"", self._memory.superblock.uuid}:
            raise PeerLostError(
                "another memory answers at this address; connect again", outcome="none"
            )
        if connection[0] in self._open_binds:
            return
        wanted = client_proof(self._memory.cookie, self._challenge, hello)
        if not hello.nonce or not hmac.compare_digest(hello.proof, wanted):
            raise AccessDeniedError(
                "this address serves clients of this host and user only: they prove that they"
                " can read the node's cookie segment",
                **self._challenge.facts(),
            )

    def _welcome(self, hello: Hello, applied: int, *, is_known: bool) -> Welcome:
        superblock = self._memory.superblock
        proof = b""
        if hello.nonce:  # who asks by a nonce wants to know whose node this is
            proof = node_proof(self._memory.cookie, self._challenge, hello)
        return Welcome(
            node_name=self._memory.name,
            node_uuid=superblock.uuid,
            node_id=superblock.node_id,
            incarnation=superblock.incarnation,
            memory_format=FORMAT,
            stripe_nbytes=STRIPE_NBYTES,
            request_nbytes_max=REQUEST_NBYTES_MAX,
            long_nbytes_max=LONG_NBYTES_MAX,
            window=WINDOW_MAX,
            ring_entries=Ring.ENTRIES,
            answers_nbytes=ANSWERS_NBYTES,
            sources_nbytes=FIRST_MIB << 20,
            lent_nbytes=LENT_NBYTES,
            applied=applied,
            resumed=is_known,
            proof=proof,
        )

    def _keep_house(self, now_s: float) -> None:
        self._context.access.refresh()
        self.metrics.slots_recovered += self._memory.sweep_slots()
        self._drop_gone(SILENT_S)
        for key, channel in self._sessions.expired(now_s=now_s):
            pid, host = (channel.hello.pid, channel.hello.host) if channel else (0, "")
            _LOG.info("channel %d of pid %d of %r was silent for too long", key[1], pid, host)
            self.metrics.sessions_expired += 1
            self._forget(key, channel)

    def _drop_gone(self, silent_s: float) -> None:
        """End the sessions of peers that are gone, of those silent for so long.

        They may come back. Their rings go, unless an answer may still be asked for.
        """
        for channel in self._sessions.gone(silent_s, now_s=self._context.now_s):
            self._drop(channel)
            if channel.is_answered:
                self._memory.channels.remove_rings(channel.row)

    def _drop(self, channel: Channel) -> None:
        """Discard unexecuted all that is held of a connection; its channel stays known.

        Its scratch regions go; of those in the making, see ``Builds``.
        """
        self._sessions.end(channel)
        self._context.waits.drop(channel.connection)
        self._dispatcher.parked.pop(channel.connection, None)
        self._context.builds.detach(channel.key, now_s=self._context.now_s)
        channel.close()
        self._context.registry.drop_unpublished(channel.key, only_scratch=True)

    def _forget(self, key: ChannelKey, channel: Channel | None) -> None:
        """Forget a channel for good: its numbers, its answers, and what it has begun."""
        if channel is not None:
            self._drop(channel)
        self._sessions.forget(key)
        self._context.builds.release(key)
        self._context.registry.drop_unpublished(key)
        row = self._memory.channels.find(*key)
        if row is not None:
            self._memory.channels.release(row)

    def _encoded(self, replies: Replies) -> Outgoing:
        outgoing: Outgoing = []
        for connection, reply in replies:
            self.metrics.sent_nbytes += len(reply.payload)
            if reply.status not in {Status.OK, Status.PARKED}:
                self.metrics.refusals[reply.status] += 1
            outgoing.append((connection, encode_reply(reply)))
        return outgoing
