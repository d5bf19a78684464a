"""Threads that end while a request is in flight."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import smbox
from smbox.errors import ConnectError
from smbox.transports import zeromq

THREADS = 40


def test_their_channels_are_used_again():
    with smbox.local("32MiB") as owner, smbox.connect(owner.address, transport="tcp") as box:
        region, x = box.create("some", 1000), np.ones(1000, np.float32)
        for _ in range(THREADS):
            thread = threading.Thread(target=region.accumulate_nb, args=(x,))
            thread.start()
            thread.join()
            time.sleep(0.01)  # else the node may not have replied yet
        assert box.stats()["sessions"] < THREADS // 2
        box.flush()
        assert region.get()[0] == THREADS


def test_a_process_without_more_sockets_is_told_so(monkeypatch):
    """ZeroMQ's own limit is below that of the system."""
    context = zeromq.zmq.Context()
    context.set(zeromq.zmq.MAX_SOCKETS, 1)
    monkeypatch.setattr(zeromq, "process_context", lambda: context)
    opened = []
    try:
        with pytest.raises(ConnectError, match=r"cannot open another socket.*fewer threads"):
            opened.extend(
                zeromq.ZmqTransport("tcp://127.0.0.1:1", queue_max=1) for _ in range(8)
            )
    finally:
        for transport in opened:
            transport.close()
        context.term()
