"""Connecting to a node: who we are, what we may, and the two remote paths that follow."""

from __future__ import annotations

import os
import secrets
import socket
from functools import partial

from msgspec.structs import replace

from smbox.client.channel import Channel
from smbox.client.remote import CONTROL_CHANNEL, RemotePath
from smbox.config import WINDOW_MAX, ClientConfig, scheme_of
from smbox.errors import (
    AccessDeniedError,
    ConfigError,
    ConnectError,
    PeerLostError,
    RequestTimeoutError,
    SegmentError,
)
from smbox.memory import layout
from smbox.memory.segment import Segment
from smbox.paths.base import Remote
from smbox.paths.control import RemoteControl
from smbox.transports.base import OpenTransport
from smbox.transports.zeromq import ZmqTransport, why_unresolved
from smbox.wire.messages import NONCE_NBYTES, Hello, Welcome
from smbox.wire.proving import Challenge, check_welcome, client_proof, node_proof


def open_remote(config: ClientConfig) -> Remote:
    """Connect to the node at ``config.address`` over ZeroMQ.

    Raises:
        ConfigError: no address.
        ConnectError: no node answers there.
        AccessDeniedError: the node serves its own host and user, and we are not that.
    """
    if config.address is None:
        raise ConfigError("no address: give one, or set SMBOX_ADDRESS")
    open_transport = partial(ZmqTransport, config.address, queue_max=2 * WINDOW_MAX)
    return open_over(open_transport, config.address, config)


def open_over(open_transport: OpenTransport, address: str, config: ClientConfig) -> Remote:
    """Connect to a node over any transport; raises as ``open_remote``.

    Args:
        open_transport: opens fresh connections to the node.
        address: of the node, for people; its scheme names the transport.
        config: timeouts and patience.
    """
    identity = Identity()

    def open_channel(number: int) -> Channel:
        return Channel(number, open_transport, identity, config)

    try:
        control = _greet(open_channel(CONTROL_CHANNEL), address, config)
    except AccessDeniedError as error:
        if not identity.learn(error):
            raise
        control = _greet(open_channel(CONTROL_CHANNEL), address, config)
    return Remote(control, RemotePath(scheme_of(address), open_channel, config))


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


def _greet(channel: Channel, address: str, config: ClientConfig) -> RemoteControl:
    """Wait for the node's welcome; a channel that gets none is closed."""
    control = RemoteControl(channel, address, config.timeout_s)
    try:
        control.ping(config.timeout_s)
    except RequestTimeoutError as error:
        control.close()
        raise ConnectError(
            _why_silent(address), address=address, timeout_s=config.timeout_s
        ) from error
    except BaseException:
        control.close()
        raise
    return control


def _why_silent(address: str) -> str:
    reason = why_unresolved(address)
    if reason is not None:
        return f"the host's name cannot be resolved ({reason}): is it spelled right?"
    return (
        "no memory node answers: is `memnode` running there, and does it listen at this"
        " address? (by itself it listens on loopback only; see memnode --bind)"
    )
