"""Who a client is, the proof that it shares the node's host, and the memory it knows."""

from __future__ import annotations

import os
import secrets
import socket

from msgspec.structs import replace

from smbox.errors import AccessDeniedError, PeerLostError, SegmentError
from smbox.memory import layout
from smbox.memory.segment import Segment
from smbox.wire.messages import NONCE_NBYTES, Hello, Welcome
from smbox.wire.proving import Challenge, check_welcome, client_proof, node_proof


class Identity:
    """Who this client is, the proof that it shares the node's host, and the memory it knows."""

    def __init__(self) -> None:
        self._node_uuid = b""
        self._client_id = secrets.token_bytes(16)
        self._challenge: Challenge | None = None
        self._cookie = b""
        self._expected: dict[int, bytes] = {}  # of the WELCOME, by channel

    def admit(self, channel: int, welcome: Welcome) -> None:
        """Check that this is the node that was greeted, and the memory that the client knows.

        Raises:
            AccessDeniedError: it does not prove that it is; nothing was sent to it.
            PeerLostError: another memory; the client uses it for nothing.
        """
        check_welcome(welcome, self._expected.get(channel, b""))
        self._node_uuid = self._node_uuid or welcome.node_uuid
        if self._node_uuid != welcome.node_uuid:
            raise PeerLostError(
                "another memory answers at this address: connect again", outcome="unknown"
            )

    def hello(self, channel: int, generation: int) -> Hello:
        """Word the greeting of a channel."""
        hello = Hello(
            client_id=self._client_id,
            channel=channel,
            node_uuid=self._node_uuid,
            pid=os.getpid(),
            host=socket.gethostname(),
            generation=generation,
        )
        challenge, cookie = self._challenge, self._cookie
        if challenge is None:
            return hello
        hello = replace(hello, nonce=secrets.token_bytes(NONCE_NBYTES))
        self._expected[channel] = node_proof(cookie, challenge, hello)
        return replace(hello, proof=client_proof(cookie, challenge, hello))

    def learn(self, error: AccessDeniedError) -> bool:
        """Take the node's challenge from its refusal; False if it cannot be answered here."""
        challenge = Challenge.of_facts(error.facts)
        if challenge is None:
            return False
        try:
            with Segment.attach(layout.cookie_name(challenge.node_name)) as segment:
                self._cookie = segment.bytes.tobytes()
        except SegmentError:
            return False
        self._challenge = challenge
        self._node_uuid = challenge.node_uuid  # whatever else comes to this address refuses us
        return True
