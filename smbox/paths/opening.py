"""Connecting to a node: opens its control path and its data path."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from smbox.client.channel import Channel
from smbox.client.connection import Connection, Identity, OpenTransport
from smbox.client.remote import CONTROL_CHANNEL, RemotePath
from smbox.config import WINDOW_MAX, ClientConfig, scheme_of
from smbox.deadline import deadline_of, left_s
from smbox.errors import ConfigError, ConnectError, RequestTimeoutError, SmboxError
from smbox.keys import read_client_key
from smbox.native import library
from smbox.paths.control import ControlPath
from smbox.paths.local import LocalPath
from smbox.paths.mappings import why_not_shared
from smbox.paths.requests import NodeInfo
from smbox.transports.handshake import handshake_error
from smbox.transports.zeromq import ZmqTransport, resolution_error

DataPath: TypeAlias = LocalPath | RemotePath
"""Moves bytes between this process and the regions of one node: LocalPath commits in this
process, RemotePath sends messages; both have the same methods. A request becomes a Work, which
progresses while a thread waits for it, and continues exactly once after a timeout. Any thread
may wait for it. One thread's operations on one region take effect in the order in which they
were begun. Sources and outputs must not be touched until their Work is done."""

Diagnose: TypeAlias = Callable[[float], SmboxError | None]
"""Finds out, until a deadline, why a node is silent: the error to raise, or None."""

DIAGNOSIS_EXTRA_S: Final = 0.4
"""How long that may take beyond the connect timeout: an unresolvable host name may take half a
second more (``resolution_error``)."""

SILENCE_S: Final = 1.0
"""After this time without WELCOME the client checks whether one end refuses the other."""


class OpenPaths(Struct, frozen=True):
    """A client's two paths to its node.

    Args:
        control: to the node's directory.
        data: to the data of the regions.
        reason: for the choice of the data path, as text.
    """

    control: ControlPath
    data: DataPath
    reason: str = "no other transport was tried"


def open_paths(config: ClientConfig) -> OpenPaths:
    """Connect to the node at ``config.address``, and map its memory if possible.

    Raises:
        ConfigError: the requested transport cannot work here.
        ConnectError: no node answers there.
        AccessDeniedError: the node serves only its own host and user.
        SystemLimitError: a limit of the system keeps this process from mapping the memory.
        NativeError: the memory could be mapped, but the native library is out of date.
    """
    remote = open_remote(config)  # its data path opens nothing before the first request
    try:
        reason = why_messages(config, remote.control.node)
        if reason is not None:
            return replace(remote, reason=reason)
        data = LocalPath(remote.control.node)
    except BaseException:
        remote.control.close()
        raise
    name = remote.control.node.name
    return OpenPaths(remote.control, data, f"node {name!r} keeps its memory in this /dev/shm")


def why_messages(config: ClientConfig, node: NodeInfo) -> str | None:
    """Return why messages carry the data; None if the memory is mapped.

    Raises:
        ConfigError: the requested transport cannot work.
        SegmentError, NativeError: as ``open_paths``.
    """
    asked = config.transport
    if asked in {"tcp", "ipc"}:
        scheme = scheme_of(config.address)
        if scheme != asked:
            raise ConfigError(
                f"transport {asked} cannot work: the scheme of the address is {scheme}",
                address=config.address,
            )
        return f"transport {asked} was requested"
    why_not = library.why_not_native() or why_not_shared(node)
    if why_not is not None and asked == "shm":
        raise ConfigError(f"transport shm cannot work: {why_not}", node_name=node.name)
    return why_not


def open_remote(config: ClientConfig) -> OpenPaths:
    """Connect to the node at ``config.address`` over ZeroMQ; raises as ``open_paths``."""
    is_tcp = scheme_of(config.address) == "tcp"
    key = read_client_key(config.key) if is_tcp and config.key is not None else None
    open_transport = partial(ZmqTransport, config.address, queue_max=2 * WINDOW_MAX, key=key)
    diagnose = partial(handshake_error, config.address, key) if is_tcp else None
    return open_over(open_transport, config, diagnose)


def open_over(
    open_transport: OpenTransport, config: ClientConfig, diagnose: Diagnose | None = None
) -> OpenPaths:
    """Connect to a node over any transport; raises as ``open_paths``.

    Args:
        open_transport: opens new connections to the node.
        config: the node's address and the timeouts.
        diagnose: returns why the node does not answer; None: nothing can find that out.
    """
    identity = Identity()

    def open_channel(number: int) -> Channel:
        return Channel(Connection(number, open_transport, identity, config))

    control = ControlPath(open_channel(CONTROL_CHANNEL), config.address)
    try:
        _await_welcome(control, config.timeout_s, diagnose)
    except BaseException:
        control.close()
        raise
    return OpenPaths(control, RemotePath(open_channel, config))


def _await_welcome(control: ControlPath, timeout_s: float, diagnose: Diagnose | None) -> None:
    """Wait for a reply; if the node stays silent, find out why.

    Raises:
        ConnectError: no reply within ``timeout_s``.
        SmboxError: the node refuses this client, or ``diagnose`` returned the reason.
    """
    deadline_s = deadline_of(timeout_s)
    with suppress(RequestTimeoutError):
        control.ping(min(SILENCE_S, left_s(deadline_s)))
        return
    refused = None if diagnose is None else diagnose(deadline_s + DIAGNOSIS_EXTRA_S)
    if refused is not None:
        raise refused
    with suppress(RequestTimeoutError):
        control.ping(left_s(deadline_s))
        return
    address = control.address
    raise ConnectError(_why_silent(address), address=address, timeout_s=timeout_s)


def _why_silent(address: str) -> str:
    if (reason := resolution_error(address)) is not None:
        return f"the host's name cannot be resolved: {reason}"
    path = address.removeprefix("ipc://")
    if path != address and path[0] != "@" and not os.access(path, os.W_OK):
        return (
            "this user cannot open the node's socket: start `memnode` at this path, or run as"
            " the user of the node"
        )
    return (
        "no memory node answers: is `memnode` running there, and does it listen at this"
        " address? (by default it listens on loopback only; see memnode --bind)"
    )
