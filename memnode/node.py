"""The node without its sockets: frames in, frames out, and what has to be done in between.

The server feeds it from ZeroMQ, tests and the in-process transport feed it directly. It owns
the memory and never waits. What a request of a session does is in handlers.py.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from memnode.context import Context
from memnode.creation import Unattended
from memnode.credit import FIRST_MIB
from memnode.dispatch import Dispatcher, Replies
from memnode.holding import LockFiles
from memnode.metrics import Metrics
from memnode.registry import Registry
from memnode.sessions import ChannelKey, Connection, Session, Sessions, key_of
from memnode.unsent import nobody
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
from smbox.memory.reading import Reader
from smbox.wire.codec import (
    Reply,
    Request,
    decode_request,
    encode_reply,
    refuse,
    refuse_garbage,
)
from smbox.wire.header import LONG_NBYTES_MAX, REQUEST_NBYTES_MAX, Buffer
from smbox.wire.messages import Empty, Hello, Welcome
from smbox.wire.ops import Op
from smbox.wire.proving import challenge_of, client_proof, node_proof
from smbox.wire.status import Status

ANSWERS_NBYTES: Final = 4 << 20
"""What may be under way of a channel's requests that are answered by copies. With 4 MiB it gets
as much a second as with 16, and who stops reading costs the node a quarter; what a batch brings
is counted, too, because it waits at the node like its answer."""

LENT_NBYTES: Final = WINDOW_MAX << 20
"""What a channel's LENDs may wait for: it costs the node no memory, but the client, whose
ZeroMQ takes in what the client has not yet come to."""

HOUSEKEEPING_S: Final = 1.0
"""How often dead local clients and silent remote ones are looked for."""

_LOG = logging.getLogger(__name__)

Outgoing = list[tuple[Connection, list[Buffer]]]


class Node:
    """A memory node: sessions, regions and handlers over one memory.

    Args:
        memory: owned by this process, recovered.
        now_s: monotonic seconds.
        expiry_s: silence after which a channel is forgotten, in seconds.
        sessions_max: sessions that there may be.
        regions_max: regions that there may be.
        open_binds: indices of the listening sockets that ask for no cookie.
        wake: called, from any thread, when ``tick`` has something to do.
    """

    def __init__(
        self,
        memory: NodeMemory,
        *,
        now_s: float,
        expiry_s: float = 300.0,
        sessions_max: int = 1024,
        regions_max: int = 65_536,
        open_binds: frozenset[int] = frozenset(),
        wake: Callable[[], None] = nobody,
    ) -> None:
        self.metrics = Metrics()
        self._memory = memory
        self._challenge = challenge_of(memory.cookie, memory.name, memory.superblock.uuid)
        self._open_binds = open_binds
        self._started_s = now_s
        self._housekept_s = now_s
        self._registry = Registry(memory, regions_max)
        self._context = Context(
            self._registry,
            memory.writer,
            Reader(memory.writer.locks),
            LockFiles(memory.name),
            Unattended(self._registry),
            self.metrics,
            self.facts,
            now_s,
        )
        self._dispatcher = Dispatcher(memory, self._context, wake)
        self._sessions = Sessions(expiry_s=expiry_s, sessions_max=sessions_max)
        rows = memory.channels.rows()
        self._sessions.remember([(row.client_id, row.channel) for row in rows], now_s=now_s)

    @property
    def is_at_rest(self) -> bool:
        """Whether ``tick`` has nothing to do but to keep house."""
        return self._dispatcher.is_at_rest

    @property
    def patience_s(self) -> float:
        """How long the server may wait for messages before it calls ``tick`` again."""
        patience_s = self._dispatcher.patience_s
        return HOUSEKEEPING_S if patience_s is None else patience_s

    def receive(
        self, connection: Connection, frames: Sequence[Buffer], *, now_s: float
    ) -> Outgoing:
        """Handle one message; returns the messages that it leads to, maybe none."""
        self._context.now_s = now_s
        try:
            request = decode_request(frames)
        except RemoteProtocolError as error:
            garbage = refuse_garbage(frames, error)
            return [] if garbage is None else self._encoded([(connection, garbage)])
        return self._encoded(self._handle(connection, request))

    def tick(self, *, now_s: float) -> Outgoing:
        """Go on with what is parked, end waits, and keep house once a second."""
        self._context.now_s = now_s
        if now_s - self._housekept_s >= HOUSEKEEPING_S:
            self._housekept_s = now_s
            self._keep_house(now_s)
        return self._encoded(self._dispatcher.advance())

    def close(self) -> None:
        """Discard unexecuted what is held; the memory stays with its owner."""
        self._dispatcher.close()

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
            "regions": len(self._registry),
            "sessions": len(self._sessions),
            "channels": len(self._memory.channels),
            "parked_now": self._dispatcher.parked_count,
            "waits_now": len(self._dispatcher.waits),
            **self.metrics.facts(),
        }

    def _handle(self, connection: Connection, request: Request) -> Replies:
        if request.op is Op.HELLO:
            return [(connection, self._greet(connection, request, cast("Hello", request.body)))]
        channel = self._dispatcher.channel(connection)
        if channel is None or channel.session.generation != request.generation:
            error = RemoteError("say HELLO first", op=request.op.name)
            return [(connection, refuse(request, error, status=Status.NO_SESSION))]
        self._sessions.touch(channel.session.key, now_s=self._context.now_s)
        if request.op is Op.BYE:
            return [(connection, self._part(connection, request))]
        return self._dispatcher.submit(channel, request)

    def _greet(self, connection: Connection, request: Request, hello: Hello) -> Reply:
        try:
            self._check_memory(hello)
            self._check_proof(connection, hello)
            row = self._memory.channels.find(*key_of(hello))
            if row is not None and row.generation > hello.generation:
                later = RemoteError("a later connection of this channel has said HELLO")
                return refuse(request, later, status=Status.NO_SESSION)
            now_s = self._context.now_s
            session, replaced = self._sessions.open(connection, hello, now_s=now_s)
            for former in replaced:
                self._dispatcher.drop(former.connection)
            return self._welcome(request, session, hello)
        except SmboxError as error:
            _LOG.info("refused pid %d of %r: %s", hello.pid, hello.host, error)
            return refuse(request, error)

    def _check_memory(self, hello: Hello) -> None:
        """Keep a client away that means another memory, which had this name or address."""
        if hello.node_uuid not in {b"", self._memory.superblock.uuid}:
            raise PeerLostError(
                "another memory answers at this address; connect again", outcome="none"
            )

    def _check_proof(self, connection: Connection, hello: Hello) -> None:
        if connection[0] in self._open_binds:
            return
        wanted = client_proof(self._memory.cookie, self._challenge, hello)
        if not hello.nonce or not hmac.compare_digest(hello.proof, wanted):
            raise AccessDeniedError(
                "this address serves clients of this host and user only: they prove that they"
                " can read the node's cookie segment",
                **self._challenge.facts(),
            )

    def _welcome(self, request: Request, session: Session, hello: Hello) -> Reply:
        try:
            channel, is_known = self._dispatcher.open(session)
        except SmboxError:
            self._sessions.close(session.connection)
            raise
        superblock = self._memory.superblock
        welcome = Welcome(
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
            applied=channel.row.applied,
            resumed=is_known,
            proof=self._proof_for(hello),
        )
        return Reply(request.op, request=request.request, body=welcome)

    def _proof_for(self, hello: Hello) -> bytes:
        """Prove to who asks by a nonce that this is the node that the memory belongs to."""
        if not hello.nonce:
            return b""
        return node_proof(self._memory.cookie, self._challenge, hello)

    def _part(self, connection: Connection, request: Request) -> Reply:
        session = self._sessions.close(connection)
        if session is not None:
            self._forget(session.key, session)
        return Reply(request.op, request=request.request, number=request.number, body=Empty())

    def _keep_house(self, now_s: float) -> None:
        try:
            self.metrics.slots_recovered += self._memory.sweep_slots()
        except SmboxError:
            _LOG.exception("the slot of a dead local client cannot be recovered")
        for key, session in self._sessions.expire(now_s=now_s):
            pid, host = (0, "") if session is None else (session.pid, session.host)
            _LOG.info("channel %d of pid %d of %r was silent for too long", key[1], pid, host)
            self.metrics.sessions_expired += 1
            self._forget(key, session)

    def _forget(self, key: ChannelKey, session: Session | None) -> None:
        if session is not None:
            self._dispatcher.drop(session.connection)
        self._dispatcher.release(key)

    def _encoded(self, replies: Replies) -> Outgoing:
        outgoing: Outgoing = []
        for connection, reply in replies:
            self.metrics.reply(reply.status, len(reply.payload))
            outgoing.append((connection, encode_reply(reply)))
        return outgoing
