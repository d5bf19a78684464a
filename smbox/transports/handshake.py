"""Why one end refuses the other's handshake: ZeroMQ tries again and again, and says nothing.

The greeting of the other end (ZMTP 3, RFC 23) names its mechanism. Where both speak CURVE, a
second look with a socket's monitor tells whether the node refused our key, or could not read
what we encrypted for another one.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

import zmq

from smbox.deadline import left_s
from smbox.errors import AccessDeniedError, ConnectError, SmboxError
from smbox.keys import ClientKey
from smbox.transports.zeromq import demand_node, own_context

LOOK_S: Final = 2.0
"""How long each of the two looks may take, if the deadline is not earlier."""

NO_TRIES: Final = 2
"""Handshakes broken off without a word until that is taken for an answer."""

SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f\x03"
"""Of ZMTP 3: whoever speaks it answers with its own greeting."""

EVENT: Final = struct.Struct("=Hi")
"""First frame of a monitor's message: event, value (``zmq_socket_monitor``)."""

GREETING_NBYTES: Final = 64
MECHANISM: Final = slice(12, 32)

_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def why_refused(address: str, key: ClientKey | None, deadline_s: float) -> SmboxError | None:
    """Return what is wrong with the handshake; None: nothing, or nobody is there.

    Args:
        address: ``tcp://host:port``.
        key: of this client; None: it has none.
        deadline_s: of the monotonic clock; by then it has returned.
    """
    mechanism = _mechanism_at(address, _until(deadline_s))
    if mechanism == b"CURVE" and key is None:
        return AccessDeniedError(
            "the node refuses clients without a key: pass key=, or set SMBOX_KEY",
            address=address,
        )
    if mechanism == b"NULL" and key is not None:
        return ConnectError(
            "this client refuses a node that encrypts nothing: connect without a key, or ask"
            " for the address that takes keys",
            address=address,
        )
    return (
        None
        if key is None or mechanism is None
        else _why_key_refused(address, key, _until(deadline_s))
    )


def _until(deadline_s: float) -> float:
    return min(deadline_s, time.monotonic() + LOOK_S)


def _mechanism_at(address: str, deadline_s: float) -> bytes | None:
    """Return how the other end authenticates; None if it does not say."""
    host, _, port = address.removeprefix("tcp://").rpartition(";")[2].rpartition(":")
    greeting, where = b"", (host.strip("[]"), int(port))
    try:
        with socket.create_connection(where, timeout=_wait_s(deadline_s)) as peer:
            peer.sendall(SIGNATURE)
            while len(greeting) < GREETING_NBYTES:
                peer.settimeout(_wait_s(deadline_s))
                part = peer.recv(GREETING_NBYTES - len(greeting))
                if not part:
                    return None
                greeting += part
    except OSError:  # nobody is there, or says nothing
        return None
    return greeting[MECHANISM].rstrip(b"\0")


def _wait_s(deadline_s: float) -> float:
    """Return a timeout of a socket, which 0 would make a socket that does not block."""
    return max(left_s(deadline_s), 1e-3)


def _why_key_refused(address: str, key: ClientKey, deadline_s: float) -> SmboxError | None:
    peer = own_context().socket(zmq.DEALER)
    monitor = peer.get_monitor_socket(_EVENTS)
    try:
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.IPV6, 1)
        demand_node(peer, key)
        peer.connect(address)
        event = _last_event(monitor, deadline_s)
    finally:
        peer.disable_monitor()
        monitor.close(linger=0)
        peer.close(linger=0)
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return AccessDeniedError(
            "the node refuses this key: it is not authorised there, has expired, or was"
            " removed (ask whoever runs the node)",
            address=address,
            client=key.name,
        )
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return ConnectError(
            "this client refuses the node, which does not have the key that the key file names:"
            " another node answers at this address, or it was given new keys",
            address=address,
            client=key.name,
        )
    return None


def _last_event(monitor: zmq.Socket[bytes], deadline_s: float) -> int:
    """Return the event that decides; 0 after silence."""
    broken_off = 0
    while (wait_s := left_s(deadline_s)) > 0.0:
        if not monitor.poll(int(wait_s * 1000)):
            break
        event = int(EVENT.unpack(monitor.recv_multipart()[0])[0])
        broken_off += event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or broken_off == NO_TRIES:
            return event
    return 0
