"""The link in between: it carries all bytes, and can be cut and held."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from smbox.testing.chaos.proxy import Proxy

RNG = random.Random(1)


@pytest.fixture
def echo(tmp_path):
    """A unix socket that sends everything back."""
    path = str(tmp_path / "echo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve():
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(peer,)).start()

    def answer(peer):
        with closing(peer):
            try:
                while data := peer.recv(4096):
                    peer.sendall(data)
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    yield path
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def dial(proxy):
    host, port = proxy.address.removeprefix("tcp://").split(":")
    return closing(socket.create_connection((host, int(port)), timeout=60))


def ask(peer, data):
    """Return what comes back; less than was sent if the link is gone."""
    found = b""
    with suppress(ConnectionError):
        peer.sendall(data)
        while len(found) < len(data) and (part := peer.recv(1 << 16)):
            found += part
    return found


def test_it_carries_and_is_cut(echo):
    with Proxy(echo) as proxy, dial(proxy) as peer:
        assert ask(peer, bytes(300_000)) == bytes(300_000)
        assert proxy.cut(RNG)
        assert ask(peer, b"more") == b""
        with dial(proxy) as other:
            assert ask(other, b"again") == b"again"


def test_held_bytes_come_later(echo):
    with Proxy(echo) as proxy, dial(proxy) as peer:
        assert ask(peer, b"first") == b"first"
        assert proxy.hold(RNG, 0.05)
        assert ask(peer, b"second") == b"second"


def test_a_slow_line_takes_its_time(echo):
    with Proxy(echo) as proxy, dial(proxy) as peer:
        proxy.pace = 1e6
        begun_s = time.monotonic()
        assert ask(peer, bytes(300_000)) == bytes(300_000)
        assert time.monotonic() - begun_s >= 0.3


def test_nobody_behind_it(tmp_path):
    with Proxy(str(tmp_path / "nobody")) as proxy:
        assert not proxy.cut(RNG)
        assert not proxy.hold(RNG, 1.0)
        with dial(proxy) as peer:
            assert ask(peer, b"anybody") == b""
