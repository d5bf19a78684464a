"""One contract, every transport: messages whole and in order, and an end that is an end."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import zmq

from smbox.testing.inproc import InprocHub
from smbox.transports.zeromq import LENT_NBYTES_MIN, ZmqTransport

WAIT_S = 30.0


def serve_echo(socket, ready):
    ready.set()
    while (message := socket.recv_multipart())[1] != b"stop":
        socket.send_multipart(message)
    socket.close(linger=0)


@pytest.fixture(params=["tcp", "inproc"])
def transport(request):
    if request.param == "inproc":
        yield InprocHub(lambda peer, frames: [(peer, frames)] if frames else []).connect()
        return
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    ready = threading.Event()
    node = threading.Thread(target=serve_echo, args=(socket, ready))
    node.start()
    opened = ZmqTransport(f"tcp://127.0.0.1:{port}", queue_max=16)
    yield opened
    opened.close()
    last = ZmqTransport(f"tcp://127.0.0.1:{port}", queue_max=16)
    last.send([b"stop"])
    node.join(WAIT_S)
    last.close()
    context.term()


def test_messages_arrive_whole_and_in_order(transport):
    sizes = [0, 1, 64, 4096, 1 << 20]
    for size in sizes:
        assert transport.send([b"header %d" % size, b"x" * size])
    for size in sizes:
        frames = transport.receive(WAIT_S)
        assert [bytes(frame) for frame in frames] == [b"header %d" % size, b"x" * size]
    assert transport.receive(0.0) is None


def test_received_frames_outlive_the_next_receive(transport):
    for text in (b"first", b"second"):
        transport.send([text])
    first, second = transport.receive(WAIT_S), transport.receive(WAIT_S)
    assert (bytes(first[0]), bytes(second[0])) == (b"first", b"second")


def test_few_messages_for_a_client_are_read_ahead(tmp_path):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as node:
        node.linger, node.rcvtimeo, node.sndtimeo = 0, int(WAIT_S * 1000), 200
        node.sndhwm, node.router_mandatory = 2, 1
        node.bind(f"ipc://{tmp_path}/node")  # its buffers are small
        client = ZmqTransport(f"ipc://{tmp_path}/node", queue_max=4)
        client.send([b"?"])
        peer, _ = node.recv_multipart()
        body, sent = bytes(1 << 20), 0
        with contextlib.suppress(zmq.Again):
            while sent < 50:
                node.send_multipart([peer, body])
                sent += 1
        assert 4 <= sent < 50
        client.close()


def test_frames_that_were_released_are_forgotten():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as node:
        node.linger, node.rcvtimeo = 0, int(WAIT_S * 1000)
        port = node.bind_to_random_port("tcp://127.0.0.1")
        client = ZmqTransport(f"tcp://127.0.0.1:{port}", queue_max=4)
        for _ in range(3):
            client.send([b"header", bytes(LENT_NBYTES_MIN)])
            node.recv_multipart()
            limit_s = time.monotonic() + WAIT_S
            while not client.is_released():
                assert time.monotonic() < limit_s
                time.sleep(0.001)
        assert len(client._lent) == 1
        client.close()
