"""memnode/wakeup.py: a poll that a signal or another thread ends."""

from __future__ import annotations

import gc
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
from memnode.wakeup import Wakeup
from smbox.memory.segment import listing

WAIT_S = 10.0
BIND = Bind.parse("tcp://127.0.0.1:0")


def is_readable(wakeup):
    return bool(select.select([wakeup.fd], [], [], 0)[0])


def test_it_ends_a_poll_until_it_is_cleared():
    wakeup = Wakeup()
    assert not is_readable(wakeup)
    ringing = threading.Thread(target=wakeup.ring)
    ringing.start()
    assert select.select([wakeup.fd], [], [], 30)[0]
    ringing.join()
    wakeup.ring()
    wakeup.clear()
    assert not is_readable(wakeup)
    wakeup.clear()


def test_it_is_never_too_full_to_ring():
    wakeup = Wakeup()
    for _ in range(1 << 17):
        wakeup.ring()
    assert is_readable(wakeup)


def test_its_files_end_with_it():
    wakeup = Wakeup()
    fd = wakeup.fd
    del wakeup
    gc.collect()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_wakes_a_poll(number):
    wakeup = Wakeup()
    with wakeup.catching_signals():
        assert wakeup.signal == 0
        os.kill(os.getpid(), number)
        assert select.select([wakeup.fd], [], [], 30)[0]
        assert wakeup.signal == number


def test_the_former_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Wakeup().catching_signals():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("addresses", [1, 2])
def test_a_signal_ends_the_longest_wait(addresses, monkeypatch):
    monkeypatch.setattr(Node, "patience_s", 60.0)
    binds = (BIND,) * addresses
    made = NodeServer(NodeConfig(binds, name=f"t{secrets.token_hex(4)}", memory_nbytes=1 << 24))
    begun_s = time.monotonic()
    with made.opened():
        strike = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        strike.start()
        made.run()
    strike.join()
    assert time.monotonic() - begun_s < 30.0
    assert listing(f"smbox.{made.name}.") == []


@pytest.fixture
def server():
    name = f"t{secrets.token_hex(4)}"
    made = NodeServer(NodeConfig((BIND,), name=name, memory_nbytes=1 << 24))
    with made.opened():
        yield made


def test_it_wakes_when_what_is_parked_can_go_on(server, monkeypatch):
    monkeypatch.setattr(Node, "is_at_rest", False)
    monkeypatch.setattr(Node, "patience_s", 4 * WAIT_S)
    ticks, found = threading.Semaphore(0), []
    monkeypatch.setattr(server, "_tick", lambda _: ticks.release())

    def ring():
        found.append(ticks.acquire(timeout=WAIT_S))
        server._wakeup.ring()
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
