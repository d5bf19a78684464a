from __future__ import annotations

import os
import secrets
import select
import signal
import threading
import time

import pytest

from memnode.config import Bind, NodeConfig
from memnode.node import Node
from memnode.server import NodeServer
from memnode.signals import StopSignal
from smbox.memory.segment import listing


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_wakes_a_poll(number):
    stop = StopSignal()
    with stop.installed():
        assert stop.number == 0
        os.kill(os.getpid(), number)
        ready, _, _ = select.select([stop.fd], [], [], 30)
        assert ready
        assert stop.number == number


def test_the_former_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stop = StopSignal()
    with stop.installed():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(stop.fd)


@pytest.mark.parametrize("addresses", [1, 2])
def test_a_signal_ends_the_longest_wait(addresses, monkeypatch):
    monkeypatch.setattr(Node, "patience_s", 60.0)
    binds = (Bind.parse("tcp://127.0.0.1:0"),) * addresses
    made = NodeServer(NodeConfig(binds, name=f"t{secrets.token_hex(4)}", memory_nbytes=1 << 24))
    begun_s = time.monotonic()
    with made.opened():
        strike = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        strike.start()
        made.run()
    strike.join()
    assert time.monotonic() - begun_s < 30.0
    assert listing(f"smbox.{made.name}.") == []
