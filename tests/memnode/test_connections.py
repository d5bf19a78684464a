"""What a listener tells a peer that is connected to it, byte by byte, and what it ends."""

from __future__ import annotations

import contextlib
import secrets
import socket

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from memnode import listener
from memnode.config import Bind, NodeConfig
from memnode.listener import Listener
from memnode.server import NodeServer
from smbox.keys import KeyPair, make_node_key

WAIT_S = 30.0
SIGNATURE = b"\xff" + bytes(8) + b"\x7f\x03"
GREETING = SIGNATURE + b"\x01" + b"NULL".ljust(20, b"\0") + bytes(32)  # of ZMTP 3.1
READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
LOOPBACK = Bind.parse("tcp://127.0.0.1:0")


@pytest.fixture
def keys():
    return KeyPair(*(key.decode() for key in zmq.curve_keypair()))


@contextlib.contextmanager
def connected(address):
    """A bare connection to an address."""
    scheme, _, place = address.partition("://")
    if scheme == "ipc":
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(place)
    else:
        host, _, port = place.rpartition(":")
        peer = socket.create_connection((host.strip("[]"), int(port)))
    with peer:
        peer.settimeout(WAIT_S)
        yield peer


def read_until(peer, wanted):
    """Read until some bytes have come, or b"": until the other end hangs up."""
    found = b""
    while not (wanted and wanted in found):
        part = peer.recv(4096)
        if not part:
            assert not wanted, found
            break
        found += part
    return found


def test_a_silent_peer_is_asked_whether_it_lives(context, monkeypatch):
    monkeypatch.setattr(listener, "HEARTBEAT_MS", 20)
    made = Listener(context, LOOPBACK)
    with connected(made.address) as peer:
        peer.sendall(GREETING + READY)
        read_until(peer, b"\x04PING")
    made.close()


def test_a_stranger_without_a_key_does_not_stay(context, keys, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_MS", 50)
    made = Listener(context, LOOPBACK, keys)
    with connected(made.address) as peer:
        read_until(peer, b"")
    made.close()


def test_a_key_that_nobody_checks_lets_nobody_in(context, keys):
    made = Listener(context, LOOPBACK, keys)
    with context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.curve_serverkey = keys.public.encode()
        peer.curve_publickey, peer.curve_secretkey = zmq.curve_keypair()
        events = peer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        peer.connect(made.address)
        assert events.poll(int(WAIT_S * 1000))
        assert recv_monitor_message(events)["event"] == zmq.EVENT_DISCONNECTED
        peer.disable_monitor()
        events.close(linger=0)
    made.close()


def test_only_tcp_asks_for_keys(tmp_path):
    make_node_key(tmp_path)
    binds = (LOOPBACK, Bind.parse(f"ipc://{tmp_path}/s"))
    name = f"t{secrets.token_hex(4)}"
    server = NodeServer(NodeConfig(binds, name=name, memory_nbytes=1 << 24, keys=tmp_path))
    with server.opened():
        for address, mechanism in zip(server.addresses, (b"CURVE", b"NULL"), strict=True):
            with connected(address) as peer:
                peer.sendall(SIGNATURE)
                read_until(peer, mechanism)


def test_ipv6(context):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    made = Listener(context, Bind.parse("tcp://[::1]:0"))
    with connected(made.address) as peer:
        read_until(peer, b"\xff")
    made.close()
