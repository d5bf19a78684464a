"""Connecting to a node: who we are, what we may, and the two remote paths that follow."""

from __future__ import annotations

import os
import secrets
import socket
from functools import partial

from smbox.config import WINDOW_MAX, ClientConfig, scheme_of
from smbox.errors import (
    AccessDeniedError,
    ConfigError,
    ConnectError,
    RequestTimeoutError,
    SegmentError,
)
from smbox.memory import layout
from smbox.memory.segment import Segment
from smbox.paths.base import Remote
from smbox.paths.control import RemoteControl
from smbox.paths.link import Link
from smbox.paths.remote import CONTROL_CHANNEL, RemotePath
from smbox.transports.base import OpenTransport
from smbox.transports.resolving import why_unresolved
from smbox.transports.zeromq import ZmqTransport
from smbox.wire.messages import Hello


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

    def open_link(channel: int) -> Link:
        return Link(open_transport, partial(identity.hello, channel), config)

    try:
        control = _greet(open_link(CONTROL_CHANNEL), address, config)
    except AccessDeniedError as error:
        if not identity.learn(error):
            raise
        control = _greet(open_link(CONTROL_CHANNEL), address, config)
    return Remote(control, RemotePath(scheme_of(address), open_link, config))


class Identity:
    """Who this client is, and the nonce that proves that it shares the node's host and user."""

    def __init__(self) -> None:
        self._client_id = secrets.token_bytes(16)
        self._node_name: str | None = None

    def hello(self, channel: int) -> Hello:
        """Word the greeting of a channel; the nonce is read anew, for a node's new memory."""
        return Hello(
            client_id=self._client_id,
            channel=channel,
            cookie=self._cookie(),
            pid=os.getpid(),
            host=socket.gethostname(),
        )

    def learn(self, error: AccessDeniedError) -> bool:
        """Take the node's name from its refusal; False if that opens no door here."""
        name = error.facts.get("node_name")
        self._node_name = name if isinstance(name, str) else None
        return bool(self._cookie())

    def _cookie(self) -> bytes:
        if self._node_name is None:
            return b""
        try:
            with Segment.attach(layout.cookie_name(self._node_name)) as segment:
                return segment.bytes.tobytes()
        except SegmentError:
            return b""


def _greet(link: Link, address: str, config: ClientConfig) -> RemoteControl:
    """Wait for the node's welcome; a link that gets none is closed."""
    control = RemoteControl(link, address, config.timeout_s)
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
