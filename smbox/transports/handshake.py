"""Diagnosis of a failed handshake, which ZeroMQ retries forever without an error.

The greeting of the peer (ZMTP 3, RFC 23) names its mechanism. If both ends use CURVE, the
monitor of a second socket shows whether the node refused the client's key, or could not decrypt
a message that was encrypted for another node's key.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

import zmq

from smbox.config import peer_of
from smbox.deadline import left_s
from smbox.errors import AccessDeniedError, ConnectError, SmboxError
from smbox.keys import ClientKey
from smbox.transports.zeromq import family_of, process_context, set_curve_keys, within

PROBE_S: Final = 2.0
"""Seconds that each of the two probes may take, if the deadline is not earlier."""

FAILURES_MIN: Final = 2
"""Handshakes that must fail without a reason before the failure counts as an answer."""

SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f\x03"
"""Signature of ZMTP 3; a peer answers it with its greeting."""

EVENT: Final = struct.Struct("=Hi")
"""First frame of a monitor's message: event, value (``zmq_socket_monitor``)."""

GREETING_NBYTES: Final = 64
MECHANISM: Final = slice(12, 32)

_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def handshake_error(
    address: str, key: ClientKey | None, deadline_s: float
) -> SmboxError | None:
    """Return the error of a failed handshake; None: no error found, or no peer answered.

    Args:
        address: ``tcp://host:port``.
        key: of this client; None: it has none.
        deadline_s: monotonic seconds at which it returns at the latest.
    """
    until_s = _until(deadline_s)
    mechanism = within(left_s(until_s), lambda: _mechanism_at(address, until_s))
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
    if key is None or mechanism is None:
        return None
    return _key_error(address, key, _until(deadline_s))


def _until(deadline_s: float) -> float:
    return min(deadline_s, time.monotonic() + PROBE_S)


def _mechanism_at(address: str, deadline_s: float) -> bytes | None:
    """Return the peer's authentication mechanism; None if the peer sends no greeting."""
    greeting = b""
    try:
        # ``connect`` itself would drop the scope of a link-local address (fe80::1%eth0).
        found = socket.getaddrinfo(*peer_of(address), family_of(address), socket.SOCK_STREAM)
        family, *_, resolved = found[0]
        with socket.socket(family) as peer:
            peer.settimeout(left_s(deadline_s))
            peer.connect(resolved)
            peer.sendall(SIGNATURE)
            while len(greeting) < GREETING_NBYTES:
                peer.settimeout(left_s(deadline_s))
                part = peer.recv(GREETING_NBYTES - len(greeting))
                if not part:
                    return None
                greeting += part
    except (OSError, UnicodeError):  # no such name, no peer, or no answer
        return None
    return greeting[MECHANISM].rstrip(b"\0")


def _key_error(address: str, key: ClientKey, deadline_s: float) -> SmboxError | None:
    peer = process_context().socket(zmq.DEALER)
    monitor = peer.get_monitor_socket(_EVENTS)
    try:
        peer.setsockopt(zmq.IPV6, int(family_of(address) == socket.AF_INET6))
        set_curve_keys(peer, key)
        peer.connect(address)
        event = _last_event(monitor, deadline_s)
    finally:
        peer.disable_monitor()
        monitor.close(linger=0)
        peer.close(linger=0)
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return AccessDeniedError(
            "the node refuses this key: it is not authorised there, has expired, or was"
            " removed (ask the operator of the node)",
            address=address,
            client=key.name,
        )
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return ConnectError(
            "this client refuses the node, which does not have the key that the key file names:"
            " another node answers at this address, or the node has new keys",
            address=address,
            client=key.name,
        )
    return None


def _last_event(monitor: zmq.Socket[bytes], deadline_s: float) -> int:
    """Return the event that ends the handshake; 0 if there was none."""
    failures = 0
    while (wait_s := left_s(deadline_s)) > 0.0:
        if not monitor.poll(int(wait_s * 1000)):
            break
        event = int(EVENT.unpack(monitor.recv_multipart()[0])[0])
        failures += event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or failures == FAILURES_MIN:
            return event
    return 0
