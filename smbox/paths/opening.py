"""Connecting to a node: who we are, what we may, and the two remote paths that follow."""

from __future__ import annotations

from functools import partial

from smbox.client.channel import Channel
from smbox.client.identity import Identity
from smbox.client.remote import CONTROL_CHANNEL, RemotePath
from smbox.config import WINDOW_MAX, ClientConfig, scheme_of
from smbox.errors import (
    AccessDeniedError,
    ConfigError,
    ConnectError,
    RequestTimeoutError,
)
from smbox.paths.base import Remote
from smbox.paths.control import RemoteControl
from smbox.transports.base import OpenTransport
from smbox.transports.zeromq import ZmqTransport, why_unresolved


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
