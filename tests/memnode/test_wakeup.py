"""memnode/server.py, Wakeup: a poll that a signal or another thread ends."""

from __future__ import annotations

import gc
import os
import secrets
import select
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
import zmq

from memnode.config import Bind, NodeConfig
from memnode.node import Node
from memnode.server import NodeServer, Wakeup
from smbox.errors import ConfigError
from smbox.memory.segment import listing
from smbox.wire.ops import Op

WAIT_S = 10.0
BIND = Bind.parse("tcp://127.0.0.1:0")


def readable(wakeup, timeout_s=0.0):
    return select.select(wakeup.fds, [], [], timeout_s)[0]


def hear(wakeup, timeout_s=0.0):
    """Take in what made it readable; tells whether something did."""
    found = readable(wakeup, timeout_s)
    for fd in found:
        wakeup.handle(fd)
    return bool(found)


def test_it_ends_a_poll_until_it_is_heard():
    wakeup = Wakeup()
    assert not readable(wakeup)
    ringing = threading.Thread(target=wakeup.wake)
    ringing.start()
    assert readable(wakeup, 30)
    ringing.join()
    wakeup.wake()
    assert hear(wakeup)
    assert not readable(wakeup)
    wakeup.handle(wakeup.fds[0])
    assert not wakeup.is_stopping


def test_it_is_never_too_full_to_ring():
    wakeup = Wakeup()
    for _ in range((1 << 16) + 1):  # bytes of a pipe
        wakeup.wake()
    assert readable(wakeup)
    with wakeup.catching_signals():
        os.kill(os.getpid(), signal.SIGTERM)  # Python warns of nothing
    assert wakeup.is_stopping


def test_the_end_of_a_parent_ends_it(caplog):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as parent:
        wakeup = Wakeup(parent.pid)
        assert not hear(wakeup)
        parent.stdin.close()
        assert hear(wakeup, 30)
        assert wakeup.is_stopping
    assert f"parent process {parent.pid} has ended" in caplog.text


def test_a_parent_that_has_ended_already_is_refused():
    with subprocess.Popen(["true"]) as parent:
        pass
    with pytest.raises(ConfigError, match="No such process") as caught:
        Wakeup(parent.pid)
    assert caught.value.facts["parent_pid"] == parent.pid


def test_what_is_no_process_cannot_be_a_parent():
    with pytest.raises(ConfigError):
        Wakeup(-1)


def test_its_files_end_with_it():
    gc.collect()  # of earlier tests
    before = set(os.listdir("/proc/self/fd"))
    wakeup = Wakeup(os.getpid())
    assert len(os.listdir("/proc/self/fd")) == len(before) + 3
    del wakeup
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_wakes_a_poll(number):
    wakeup = Wakeup()
    with wakeup.catching_signals():
        assert not wakeup.is_stopping
        os.kill(os.getpid(), number)
        assert readable(wakeup, 30)
        assert wakeup.is_stopping


def test_the_former_handlers_come_back():
    """So does the file of the wakeup: else a signal would write into another's file."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    signal.set_wakeup_fd(fd)
    with Wakeup().catching_signals():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert signal.set_wakeup_fd(-1) == fd
    os.close(fd)


def test_the_end_of_another_watched_process_only_wakes_it():
    wakeup = Wakeup()
    with subprocess.Popen(["true"]) as child:
        wakeup.watch(child.pid)
        assert hear(wakeup, 30)
    assert not wakeup.is_stopping


@pytest.mark.parametrize("addresses", [1, 2])
def test_a_signal_ends_the_longest_wait(addresses, monkeypatch):
    monkeypatch.setattr(Node, "poll_s", 60.0)
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
    monkeypatch.setattr(Node, "is_idle", False)
    monkeypatch.setattr(Node, "poll_s", 4 * WAIT_S)
    ticks, found = threading.Semaphore(0), []
    monkeypatch.setattr(Node, "tick", lambda *_, **__: ticks.release() or [])

    def ring():
        found.append(ticks.acquire(timeout=WAIT_S))
        server._wakeup.wake()
        found.append(ticks.acquire(timeout=WAIT_S))
        os.kill(os.getpid(), signal.SIGTERM)

    ringing = threading.Thread(target=ring)
    ringing.start()
    server.run()
    ringing.join()
    assert found == [True, True]


def test_it_wakes_when_a_client_has_read_what_was_unsent(server, connect, monkeypatch):
    monkeypatch.setattr(Node, "poll_s", 4 * WAIT_S)
    node = SimpleNamespace(address=server.addresses[0], ready={"name": server.name})
    asked, answered = [], []

    def ask():
        try:
            peer = connect(node)
            peer.socket.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
            get = {"address": peer.create("w", (1 << 18,)).body.address, "nbytes": 1 << 20}
            # more than the buffers of the kernel hold
            asked.extend(peer.begin(Op.GET, **get).request for _ in range(24))
            answered.extend(peer.reply().request for _ in range(24))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    server.run()
    asking.join()
    assert answered == asked


def test_a_node_at_rest_sleeps(start, connect):
    node = start()
    connect(node).create("w")
    process = psutil.Process(node.process.pid)
    before = process.num_ctx_switches().voluntary
    time.sleep(1.0)
    assert process.num_ctx_switches().voluntary - before < 100
