from __future__ import annotations

import secrets
import socket
import time

import pytest
import zmq

from memnode.config import Bind
from memnode.listener import (
    COPY_BELOW_NBYTES,
    FRAME_NBYTES_MAX,
    RECEIVED_MAX,
    SKIPPED_MAX,
    Listener,
    check_free,
)
from smbox.config import WINDOW_MAX
from smbox.errors import ConnectError
from smbox.keys import KeyPair
from smbox.transports import zeromq
from smbox.wire.codec import decode_reply

WAIT_MS = 60_000


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


def test_a_peer_that_is_gone_is_not_reached(listener, dealer):
    here, gone = dealer(listener.address), dealer(listener.address)
    peers = []
    for each in (here, gone):
        each.send(b"x" * 16)
        peers.append(received(listener)[0])
    gone.close()
    for _ in range(WAIT_MS):
        if not listener.is_connected(peers[1]):
            break
        time.sleep(0.001)
    assert not listener.is_connected(peers[1])
    assert listener.is_connected(peers[0])
    assert not listener.is_connected(b"never seen")
    assert decode_reply(here.recv_multipart()).request == 0


def received(listener):
    assert listener.socket.poll(WAIT_MS)
    return listener.receive()


def test_port_0_takes_a_free_port(listener):
    assert listener.address.startswith("tcp://127.0.0.1:")
    assert not listener.address.endswith(":0")


@pytest.mark.parametrize(
    ("address", "is_open"),
    [("tcp://127.0.0.1:0", False), ("ipc://@{name}", False), ("tcp://0.0.0.0:0", True)],
)
def test_addresses_of_this_host_alone_ask_for_the_cookie(context, address, is_open):
    listener = Listener(context, Bind.parse(address.format(name=secrets.token_hex(8))))
    assert listener.is_open is is_open
    listener.close()


def test_clients_with_keys_need_no_cookie(context):
    keys = KeyPair(*(key.decode() for key in zmq.curve_keypair()))
    listener = Listener(context, Bind.parse("tcp://127.0.0.1:0"), keys)
    assert listener.is_open
    listener.close()


def test_frames_come_and_go(dealer, listener):
    client = dealer(listener.address)
    client.send_multipart([b"head", b"body"])
    peer, frames, user = received(listener)
    assert user == ""
    assert [bytes(frame) for frame in frames] == [b"head", b"body"]
    large = bytearray(2 * COPY_BELOW_NBYTES)
    assert listener.send(peer, [b"reply", large])
    assert client.poll(WAIT_MS)
    assert client.recv_multipart() == [b"reply", bytes(large)]
    assert listener.receive() is None


def test_frames_too_many_are_dropped_in_turns(dealer, listener):
    client = dealer(listener.address)
    client.send_multipart([b"head", b"body", *[b"more"] * (2 * SKIPPED_MAX + 1)])
    for text in (b"next", b"last"):
        client.send_multipart([text])
    _, frames, _ = received(listener)
    assert [bytes(frame) for frame in frames] == [b"head", b"body", b""]
    assert [listener.receive(), listener.receive()] == [None, None]
    for text in (b"next", b"last"):
        frames = None
        while frames is None:  # it may come a little later
            frames = received(listener)
        assert frames[1] == [text]
    assert listener.receive() is None


def test_large_frames_too_many_are_not_kept(dealer, listener):
    frame = bytes(1 << 20)
    dealer(listener.address).send_multipart([b"head", *[frame] * 4])
    _, frames, _ = received(listener)
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
    peer, _, _ = received(listener)
    body = bytes(1 << 20)
    sent = 0
    while listener.send(peer, [b"reply", body]):
        sent += 1
        assert sent < 100 * WINDOW_MAX, "replies are queued without end"
    assert sent >= WINDOW_MAX
    assert listener.is_connected(peer)


def test_ipc(context, dealer, tmp_path):
    made = Listener(context, Bind.parse(f"ipc://{tmp_path}/s"))
    dealer(made.address).send(b"head")
    assert received(made)[1] == [b"head"]
    made.close()


def test_a_host_that_nobody_knows_is_called_that(context, monkeypatch):
    monkeypatch.setattr(zeromq, "RESOLVE_S", 20.0)  # a slow name server is no failure here
    with pytest.raises(ConnectError, match=r"[Nn]ame"):
        Listener(context, Bind.parse("tcp://no-such-host.invalid:1"))


def test_an_address_in_use_is_refused(context, listener):
    with pytest.raises(ConnectError, match="listen") as caught:
        Listener(context, Bind.parse(listener.address))
    assert caught.value.facts["address"] == listener.address
    port = listener.address.rpartition(":")[2]
    with pytest.raises(ConnectError, match="in use"):  # which is no name
        Listener(context, Bind.parse(f"tcp://*:{port}"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def listen(context, path):
    made = []

    def listen():
        made.append(Listener(context, Bind.parse(f"ipc://{path}")))
        return made[-1]

    yield listen
    for listener in made:
        listener.close()


def test_a_file_of_another_kind_stays(context, listen, path):
    path.write_text("precious")
    with pytest.raises(ConnectError, match="existing file"):
        listen()
    with pytest.raises(ConnectError, match=r"Not a directory \("):
        Listener(context, Bind.parse(f"ipc://{path}/s"))
    assert path.read_text() == "precious"


def test_a_socket_in_use_is_nobody_elses(listen, path):
    first = listen()
    with pytest.raises(ConnectError, match="another process"):
        listen()
    first.close()
    assert not path.exists()


def test_the_socket_of_a_killed_node_is_taken_over(listen, path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    listen().close()
    assert not path.exists()


def test_one_whose_queue_is_full_is_in_use(path):
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ConnectError, match="another process"):
            check_free(str(path), f"ipc://{path}")


def test_a_path_that_another_took_meanwhile_stays(listen, path):
    ours = listen()
    other = path.with_name("other")
    other.write_text("new")
    other.rename(path)
    ours.close()
    assert path.read_text() == "new"


def test_what_is_gone_already_is_fine(listen, path):
    ours = listen()
    path.unlink()
    ours.close()


def test_an_abstract_name_is_no_file(context, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"@{secrets.token_hex(8)}"
    ours = Listener(context, Bind.parse(f"ipc://{name}"))
    (tmp_path / name).write_text("precious")
    check_free(name, f"ipc://{name}")
    ours.close()
    assert (tmp_path / name).exists()
