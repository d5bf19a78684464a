"""Sessions: HELLO connects a channel; BYE, silence or a later HELLO end that.

No socket or clock in here: time is an argument.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import Final, cast

from memnode.context import Channel, Connection, Context
from memnode.flow import ANSWERS_NBYTES, FIRST_MIB, LENT_NBYTES, Unsent
from smbox.config import WINDOW_MAX
from smbox.errors import (
    AccessDeniedError,
    LimitError,
    PeerLostError,
    RemoteError,
    SmboxError,
)
from smbox.memory.channels import ChannelKey, ChannelRow
from smbox.memory.layout import FORMAT, STRIPE_NBYTES, Ring
from smbox.wire.codec import Reply, Request, refuse
from smbox.wire.header import LONG_NBYTES_MAX, REQUEST_NBYTES_MAX
from smbox.wire.messages import Hello, Welcome
from smbox.wire.proving import challenge_of, client_proof, node_proof
from smbox.wire.status import Status

SESSIONS_MAX: Final = 1024
EXPIRY_S: Final = 300.0
"""Silence after which a channel is forgotten."""

SILENT_S: Final = 5.0
"""Silence after which a remote client is looked for, and again as often."""

FULL_S: Final = 1.0
"""The same where all sessions are taken and another channel says HELLO."""

_LOG = logging.getLogger(__name__)


class Sessions:
    """Begins and ends the sessions of channels.

    Args:
        context: of the node; channels of an earlier run may come back to it.
        sessions_max: sessions that there may be.
        open_binds: indices of the listening sockets that ask for no cookie.
        is_connected: tells whether a peer is there; asked of those that are silent.
        wake: called, from any thread, when a request parked as UNSENT can go on.
    """

    def __init__(
        self,
        context: Context,
        sessions_max: int,
        open_binds: frozenset[int],
        is_connected: Callable[[Connection], bool],
        wake: Callable[[], object],
    ) -> None:
        self._context = context
        self._memory = memory = context.memory
        self._challenge = challenge_of(memory.cookie, memory.name, memory.superblock.uuid)
        self._sessions_max = sessions_max
        self._open_binds = open_binds
        self._is_connected = is_connected
        self._wake = wake
        for row in memory.channels.rows():
            row.heard_s = context.now_s

    def greet(self, connection: Connection, request: Request, user: str) -> Reply:
        """Take up a channel on its present connection, or refuse it."""
        hello, channels = cast("Hello", request.body), self._memory.channels
        key = int.from_bytes(hello.client_id, "little"), hello.channel
        try:
            self._check(connection, hello)
            known = channels.find(*key)
            if known is not None and known.generation > hello.generation:
                later = RemoteError("a later connection of this channel has said HELLO")
                return refuse(request, later, status=Status.NO_SESSION)
            self._make_room(connection, key)
            row = known or channels.claim(*key)
        except SmboxError as error:
            _LOG.info("refused pid %d of %r: %s", hello.pid, hello.host, error)
            return refuse(request, error)
        row.generation = hello.generation
        row.heard_s = self._context.now_s
        made = Channel(connection, hello, row, user, Unsent(self._wake))
        self._context.connected[connection] = made
        welcome = self._welcome(hello, row.applied, is_known=known is not None)
        return Reply(request.op, request=request.request, body=welcome)

    def drop_gone(self, silent_s: float = SILENT_S) -> None:
        """End the sessions of peers that are gone, of those silent for so long.

        No peer is looked for more often. They may come back. Their rings go, unless an answer
        may still be asked for.
        """
        limit_s = self._context.now_s - silent_s
        known = self._context.connected.values()
        for channel in [c for c in known if max(c.row.heard_s, c.looked_s) <= limit_s]:
            channel.looked_s = self._context.now_s
            if not self._is_connected(channel.connection):
                self.drop(channel)
                if channel.is_answered:
                    self._memory.channels.remove_rings(channel.row)

    def expire(self) -> None:
        """Forget the channels that were silent for too long, connected or not."""
        limit_s = self._context.now_s - EXPIRY_S
        for row in [each for each in self._memory.channels.rows() if each.heard_s <= limit_s]:
            _LOG.info(
                "channel %d of client %x was silent for too long", row.channel, row.key[0]
            )
            self._context.metrics.sessions_expired += 1
            self.forget(row)

    def drop(self, channel: Channel) -> None:
        """Discard unexecuted all that is held of a connection; its channel stays known.

        Its scratch regions go; of those in the making, see ``Builds``.
        """
        context = self._context
        del context.connected[channel.connection]
        context.pending.pop(channel.connection, None)
        context.builds.detach(channel.key, now_s=context.now_s)
        channel.close()
        context.registry.drop_unpublished(channel.key, only_scratch=True)

    def forget(self, row: ChannelRow) -> None:
        """Forget a channel for good: its numbers, its answers, and what it has begun."""
        for channel in [c for c in self._context.connected.values() if c.row is row]:
            self.drop(channel)
        self._context.builds.release(row.key)
        self._context.registry.drop_unpublished(row.key)
        self._memory.channels.release(row)

    def _check(self, connection: Connection, hello: Hello) -> None:
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

    def _make_room(self, connection: Connection, key: ChannelKey) -> None:
        """End the former sessions of this connection and of this channel.

        Raises:
            LimitError: the node has as many sessions as it takes; none of these is ended.
        """
        connected, limit = self._context.connected, self._sessions_max
        if len(connected) >= limit:
            self.drop_gone(FULL_S)
        former = [c for c in connected.values() if c.connection == connection or c.key == key]
        if len(connected) - len(former) >= limit:
            raise LimitError("the node has all the sessions it takes", limit=limit)
        for channel in former:
            self.drop(channel)

    def _welcome(self, hello: Hello, applied: int, *, is_known: bool) -> Welcome:
        memory, superblock, proof = self._memory, self._memory.superblock, b""
        if hello.nonce:  # who asks by a nonce wants to know whose node this is
            proof = node_proof(memory.cookie, self._challenge, hello)
        return Welcome(
            node_name=memory.name,
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
