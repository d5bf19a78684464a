"""memnode/waker.py: a poll that another thread ends."""

from __future__ import annotations

import os
import secrets
import select
import signal
import threading
import time

import psutil
import pytest

from memnode.config import Bind, NodeConfig
from memnode.node import Node
from memnode.server import NodeServer
from memnode.waker import Waker

WAIT_S = 10.0


def is_readable(waker):
    return bool(select.select([waker.fd], [], [], 0)[0])


def test_it_ends_a_poll_until_it_is_cleared():
    waker = Waker()
    assert not is_readable(waker)
    ringing = threading.Thread(target=waker.ring)
    ringing.start()
    assert select.select([waker.fd], [], [], 30)[0]
    ringing.join()
    waker.ring()
    waker.clear()
    assert not is_readable(waker)
    waker.clear()


def test_its_file_ends_with_it():
    waker = Waker()
    fd = waker.fd
    del waker
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


@pytest.fixture
def server():
    name = f"t{secrets.token_hex(4)}"
    bind = Bind.parse("tcp://127.0.0.1:0")
    made = NodeServer(NodeConfig((bind,), name=name, memory_nbytes=1 << 24))
    with made.opened():
        yield made


def test_it_wakes_when_what_is_parked_can_go_on(server, monkeypatch):
    monkeypatch.setattr(Node, "is_at_rest", False)
    monkeypatch.setattr(Node, "patience_s", 4 * WAIT_S)
    ticks, found = threading.Semaphore(0), []
    monkeypatch.setattr(server, "_tick", lambda _: ticks.release())

    def ring():
        found.append(ticks.acquire(timeout=WAIT_S))
        server._waker.ring()
        found.append(ticks.acquire(timeout=WAIT_S))
        os.kill(os.getpid(), signal.SIGTERM)

    ringing = threading.Thread(target=ring)
    ringing.start()
    server.run()
    ringing.join()
    assert found == [True, True]


def test_a_node_at_rest_sleeps(start, connect):
    node = start()
    connect(node).create("w")
    process = psutil.Process(node.process.pid)
    before = process.num_ctx_switches().voluntary
    time.sleep(1.0)
    assert process.num_ctx_switches().voluntary - before < 100
