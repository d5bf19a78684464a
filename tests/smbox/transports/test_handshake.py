"""Looks at nodes that do not answer as they should."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time

import pytest

from smbox.transports.handshake import PROBE_S, handshake_error


@pytest.fixture
def dripping():
    """The address of a server that greets with a byte now and then."""
    ended = threading.Event()

    def drip():
        with contextlib.suppress(OSError):
            peer = server.accept()[0]
            with peer:
                while not ended.wait(0.2):
                    peer.sendall(b"\xff")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join()


def test_a_greeting_that_comes_byte_by_byte_is_not_waited_for(dripping):
    began_s = time.monotonic()
    assert handshake_error(dripping, None, math.inf) is None
    assert time.monotonic() - began_s < 2 * PROBE_S


def test_a_deadline_ends_a_look_at_a_greeting_that_never_ends(dripping):
    began_s = time.monotonic()
    assert handshake_error(dripping, None, began_s + 0.1) is None
    assert time.monotonic() - began_s < PROBE_S / 2


def test_a_name_server_that_does_not_answer_keeps_nobody_waiting(monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers.wait(20.0) and [])
    began_s = time.monotonic()
    assert handshake_error("tcp://node:5555", None, began_s + 0.1) is None
    assert time.monotonic() - began_s < PROBE_S / 2
    answers.set()


def test_a_name_that_no_host_can_have_is_no_failure():
    assert handshake_error("tcp://a..b:5555", None, math.inf) is None
