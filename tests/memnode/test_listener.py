from __future__ import annotations

import pytest
import zmq

from memnode.config import Bind
from memnode.listener import (
    COPY_BELOW_NBYTES,
    FRAME_NBYTES_MAX,
    RECEIVED_MAX,
    SKIPPED_MAX,
    Listener,
)
from smbox.config import WINDOW_MAX
from smbox.errors import ConnectError
from smbox.transports import zeromq

WAIT_MS = 60_000


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def listener(context):
    made = Listener(context, Bind.parse("tcp://127.0.0.1:0"))
    yield made
    made.close()


@pytest.fixture
def dealer(context):
    made = []

    def connected(address):
        found = context.socket(zmq.DEALER)
        found.setsockopt(zmq.LINGER, 0)
        found.setsockopt(zmq.SNDHWM, 1)
        found.setsockopt(zmq.RCVHWM, 1)
        found.connect(address)
        made.append(found)
        return found

    yield connected
    for each in made:
        each.close()


def received(listener):
    assert listener.socket.poll(WAIT_MS)
    return listener.receive()


def test_port_0_takes_a_free_port(listener):
    assert listener.address.startswith("tcp://127.0.0.1:")
    assert not listener.address.endswith(":0")


def test_frames_come_and_go(dealer, listener):
    client = dealer(listener.address)
    client.send_multipart([b"head", b"body"])
    peer, frames = received(listener)
    assert [bytes(frame) for frame in frames] == [b"head", b"body"]
    large = bytearray(2 * COPY_BELOW_NBYTES)
    assert listener.send(peer, [b"reply", large])
    assert client.poll(WAIT_MS)
    assert client.recv_multipart() == [b"reply", bytes(large)]
    assert listener.receive() is None


def test_frames_too_many_are_dropped_in_turns(dealer, listener):
    client = dealer(listener.address)
    client.send_multipart([b"head", b"body", *[b"more"] * (2 * SKIPPED_MAX + 1)])
    client.send_multipart([b"next"])
    _, frames = received(listener)
    assert [bytes(frame) for frame in frames] == [b"head", b"body", b""]
    assert [listener.receive(), listener.receive()] == [None, None]
    frames = None
    while frames is None:  # it may come a little later
        frames = received(listener)
    assert frames[1] == [b"next"]
    assert listener.receive() is None


def test_large_frames_too_many_are_not_kept(dealer, listener):
    frame = bytes(1 << 20)
    dealer(listener.address).send_multipart([b"head", *[frame] * 4])
    _, frames = received(listener)
    assert sum(map(len, frames)) == len(b"head") + len(frame)
    assert listener.receive() is None


def test_a_frame_that_is_too_long_ends_the_connection(dealer, listener):
    client = dealer(listener.address)
    monitor = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.send_multipart([b"head", bytes(FRAME_NBYTES_MAX)])
    assert len(received(listener)[1][1]) == FRAME_NBYTES_MAX
    client.send_multipart([b"head", bytes(FRAME_NBYTES_MAX + 1)])
    assert monitor.poll(WAIT_MS)
    client.disable_monitor()
    monitor.close()
    assert listener.receive() is None


def test_few_messages_of_a_peer_are_read_ahead(context, dealer, tmp_path):
    made = Listener(context, Bind.parse(f"ipc://{tmp_path}/s"))  # its buffers are small
    client = dealer(made.address)
    body, sent = bytes(1 << 20), 0
    while client.poll(500, zmq.POLLOUT):
        client.send(body, copy=False)
        sent += 1
        assert sent < 2 * RECEIVED_MAX, "messages are read ahead without end"
    assert sent >= RECEIVED_MAX == 32  # as docs/failure.md says
    made.close()


def test_a_reply_to_nobody_is_dropped(listener):
    assert not listener.send(b"nobody", [b"reply"])


def test_who_does_not_read_is_not_waited_for(dealer, listener):
    client = dealer(listener.address)
    client.send(b"head")
    peer, _ = received(listener)
    body = bytes(1 << 20)
    sent = 0
    while listener.send(peer, [b"reply", body]):
        sent += 1
        assert sent < 100 * WINDOW_MAX, "replies are queued without end"
    assert sent >= WINDOW_MAX


def test_ipc(context, dealer, tmp_path):
    made = Listener(context, Bind.parse(f"ipc://{tmp_path}/s"))
    dealer(made.address).send(b"head")
    assert received(made)[1] == [b"head"]
    made.close()


def test_a_host_that_nobody_knows_is_called_that(context, monkeypatch):
    monkeypatch.setattr(zeromq, "LOOK_UP_S", 20.0)  # a slow name server is no failure here
    with pytest.raises(ConnectError, match=r"[Nn]ame"):
        Listener(context, Bind.parse("tcp://no-such-host.invalid:1"))


def test_an_address_in_use_is_refused(context, listener):
    with pytest.raises(ConnectError, match="listen") as caught:
        Listener(context, Bind.parse(listener.address))
    assert caught.value.facts["address"] == listener.address
    port = listener.address.rpartition(":")[2]
    with pytest.raises(ConnectError, match="in use"):  # which is no name
        Listener(context, Bind.parse(f"tcp://*:{port}"))
