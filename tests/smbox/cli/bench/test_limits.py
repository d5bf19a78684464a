"""The limits move every byte, and nothing waits for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import zmq

from smbox.cli.bench import peer
from smbox.cli.bench.limits import BareZmq, RawStream


@pytest.fixture
def stream() -> Iterator[RawStream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=peer.serve_stream, args=(listener,))
        server.start()
        with closing(RawStream(listener.getsockname()[1])) as opened:
            yield opened
        server.join()


@pytest.fixture
def bare() -> Iterator[BareZmq]:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    server = threading.Thread(target=peer.serve_frames, args=(router,))
    server.start()
    with closing(BareZmq(port)) as opened:
        yield opened
    context.term()
    server.join()


def test_a_stream_gets_every_byte(stream):
    out = np.ones(700_001, np.uint8)
    stream.get(out, 256 * 1024)
    assert not out.any()


def test_a_stream_puts_and_is_answered(stream):
    for call_nbytes in (1000, 1 << 20):
        stream.put(np.ones(700_001, np.uint8), call_nbytes)


@pytest.mark.parametrize("nbytes", [64, 1 << 20, (20 << 20) + 5])
def test_bare_zmq_moves_every_byte_both_ways(bare, nbytes):
    source = np.arange(nbytes, dtype=np.uint8)
    out = np.empty(nbytes, np.uint8)
    bare.put(source)
    bare.get(out)
    assert np.array_equal(out, source)
    bare.exchange(source[::-1].copy(), out)
    assert np.array_equal(out, source[::-1])


def test_nothing_of_an_earlier_transfer_is_left(bare):
    bare.get(np.empty(3 << 20, np.uint8))
    bare.exchange(np.ones(5, np.uint8), np.empty(5, np.uint8))
    out = np.empty(5, np.uint8)
    bare.get(out)
    assert out.tolist() == [1] * 5
