"""Sessions: HELLO starts one; BYE, silence or a later HELLO ends it.

This file uses no socket and no clock: time is an argument.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass
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
from smbox.memory.layout import Ring
from smbox.wire.codec import Reply, Request, refuse
from smbox.wire.messages import Hello, Welcome
from smbox.wire.ops import Status
from smbox.wire.proving import CLIENT, NODE, challenge_of, proof_of

SESSIONS_MAX: Final = 1024
EXPIRY_S: Final = 300.0
"""A channel that was silent for so long is removed."""

SILENT_S: Final = 5.0
"""A remote client that was silent for so long is probed, and again after as long."""

FULL_S: Final = 1.0
"""The same when all sessions are taken and another channel sends HELLO."""

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Sessions:
    """Starts and ends the sessions of channels.

    Attributes:
        context: of the node; channels of an earlier run may reconnect.
        open_binds: indices of the listening sockets that require no cookie proof.
        is_connected: returns whether a peer is connected; called for silent peers.
        wake: called, from any thread, when a request parked as UNSENT can continue.
    """

    context: Context
    open_binds: frozenset[int]
    is_connected: Callable[[Connection], bool]
    wake: Callable[[], object]

    def __post_init__(self) -> None:
        self._memory = memory = self.context.memory
        self._challenge = challenge_of(memory.cookie, memory.name, memory.superblock.uuid)
        for row in memory.channels.rows():
            row.heard_s = self.context.now_s

    def open(self, connection: Connection, request: Request, user: str) -> Reply:
        """Handle HELLO: give the channel a session on this connection, or refuse it."""
        hello, channels = cast("Hello", request.body), self._memory.channels
        key = hello.client_id, hello.channel
        try:
            self._check(connection, hello)
            known = channels.find(*key)
            if known is not None and known.generation > request.generation:
                later = RemoteError("a later connection of this channel has sent HELLO")
                return refuse(request, later, status=Status.NO_SESSION)
            self._make_room(connection, key)
            row = known or channels.claim(*key)
        except SmboxError as error:
            _LOG.info("refused HELLO of pid %d on %r: %s", hello.pid, hello.host, error)
            return refuse(request, error)
        row.generation = request.generation
        row.heard_s = self.context.now_s
        channel = Channel(connection, row, user, Unsent(self.wake))
        self.context.connected[connection] = channel
        welcome = self._welcome(hello, row.applied, is_known=known is not None)
        return Reply(request.op, request=request.request, body=welcome)

    def close_disconnected(self, silent_s: float = SILENT_S) -> None:
        """End the sessions of disconnected peers that were silent for ``silent_s``.

        A peer is probed at most once in ``silent_s``. The channel may reconnect. Its rings are
        removed unless its client may still ask for an answer again.
        """
        limit_s = self.context.now_s - silent_s
        known = self.context.connected.values()
        for channel in [c for c in known if max(c.row.heard_s, c.probed_s) <= limit_s]:
            channel.probed_s = self.context.now_s
            if not self.is_connected(channel.connection):
                self.close(channel)
                if channel.acknowledged >= channel.row.applied:
                    self._memory.channels.remove_rings(channel.row)

    def expire(self, *, paused_s: float) -> None:
        """Remove the channels that were silent for ``EXPIRY_S``, connected or not.

        Args:
            paused_s: time since the last call in which this process did not run (SIGSTOP); it
                does not count, as what clients sent may not have been read yet.
        """
        for row in self._memory.channels.rows():
            row.heard_s = min(row.heard_s + paused_s, self.context.now_s)
            if row.heard_s <= self.context.now_s - EXPIRY_S:
                _LOG.info("channel %d of client %s expired", row.channel, row.key[0].hex())
                self.context.metrics.sessions_expired += 1
                self.remove(row)

    def close(self, channel: Channel) -> None:
        """End a session: discard its queue unexecuted, but keep the row of the channel.

        Its scratch regions are freed; the node continues its builds.
        """
        context = self.context
        del context.connected[channel.connection]
        channel.close()
        context.registry.drop_unpublished(channel.key, only_scratch=True)

    def remove(self, row: ChannelRow) -> None:
        """Remove a channel for good, with its numbers, its answers and its unfinished work."""
        for channel in [c for c in self.context.connected.values() if c.row is row]:
            self.close(channel)
        self.context.builds.release(row.key)
        self.context.registry.drop_unpublished(row.key)
        self._memory.channels.release(row)

    def _check(self, connection: Connection, hello: Hello) -> None:
        """Check that the client expects this memory and has proved its access.

        Raises:
            PeerLostError: it expects another memory, which had this name or address before.
            AccessDeniedError: the proof is missing or wrong; the facts are the challenge.
        """
        if hello.node_uuid not in {b"", self._memory.superblock.uuid}:
            raise PeerLostError(
                "another memory answers at this address; connect again", outcome="none"
            )
        if connection[0] in self.open_binds:
            return
        expected = proof_of(CLIENT, self._memory.cookie, self._challenge, hello)
        if not hello.nonce or not hmac.compare_digest(hello.proof, expected):
            raise AccessDeniedError(
                "this address serves only clients that can read the node's cookie in /dev/shm:"
                " run on its host, in its container and as its user, or start it with --keys",
                **self._challenge.facts(),
            )

    def _make_room(self, connection: Connection, key: ChannelKey) -> None:
        """End the earlier sessions of this connection and of this channel.

        Raises:
            LimitError: all sessions are taken; no earlier session was ended.
        """
        connected = self.context.connected
        if len(connected) >= SESSIONS_MAX:
            self.close_disconnected(FULL_S)
        former = [c for c in connected.values() if c.connection == connection or c.key == key]
        if len(connected) - len(former) >= SESSIONS_MAX:
            raise LimitError("all sessions of the node are taken", limit=SESSIONS_MAX)
        for channel in former:
            self.close(channel)

    def _welcome(self, hello: Hello, applied: int, *, is_known: bool) -> Welcome:
        memory = self._memory
        superblock = memory.superblock
        # A nonce asks for the node's proof.
        proof = proof_of(NODE, memory.cookie, self._challenge, hello) if hello.nonce else b""
        return Welcome(
            node_name=memory.name,
            node_uuid=superblock.uuid,
            node_id=superblock.node_id,
            incarnation=superblock.incarnation,
            window=WINDOW_MAX,
            ring_entries=Ring.ENTRIES,
            answers_nbytes=ANSWERS_NBYTES,
            sources_nbytes=FIRST_MIB << 20,
            lent_nbytes=LENT_NBYTES,
            applied=applied,
            resumed=is_known,
            proof=proof,
        )
