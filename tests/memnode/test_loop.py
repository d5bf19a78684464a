"""The loop of a node in this process: its ticks, its errors, and the memory that it takes."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import threading
import time
from functools import partial

import pytest
import zmq

import smbox
from memnode import server as node_server, sessions
from memnode.config import Bind, NodeConfig
from memnode.listener import Listener
from memnode.node import Node
from memnode.server import NodeServer
from smbox.errors import LimitError, SegmentError
from smbox.keys import make_node_key
from smbox.memory.node_memory import NodeMemory
from smbox.memory.segment import listing, room_nbytes
from smbox.wire.codec import Request, decode_reply, decode_request, encode_request
from smbox.wire.messages import Empty
from smbox.wire.ops import Op

WAIT_S = 60.0
FREE_PORT = "tcp://127.0.0.1:0"


@pytest.fixture
def server():
    name = f"t{secrets.token_hex(4)}"
    config = NodeConfig((Bind.parse(FREE_PORT),), name=name, memory_nbytes=1 << 24)
    made = NodeServer(config)
    with made.opened():
        yield made


def ask_often(address, messages):
    """Send so many PINGs, each after the reply to the last one."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        peer.connect(address)
        for number in range(1, messages + 1):
            peer.send_multipart(encode_request(Request(Op.PING, request=number, body=Empty())))
            peer.recv_multipart()


def run_beside(server, job):
    """Run the node's loop until a job in another thread has ended."""

    def work():
        try:
            job()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=work)
    thread.start()
    server.run()
    thread.join(WAIT_S)


def test_what_goes_wrong_between_messages_is_logged_and_survived(server, monkeypatch, caplog):
    ticks = []

    def tick(*_, **__):
        ticks.append(None)
        if len(ticks) == 1:
            raise ZeroDivisionError
        os.kill(os.getpid(), signal.SIGTERM)
        return []

    monkeypatch.setattr(Node, "poll_s", 0.0)
    monkeypatch.setattr(Node, "tick", tick)
    server.run()
    assert caplog.text.count("cannot run parked requests") == 1


def test_an_idle_node_does_not_tick_after_each_message(server, monkeypatch):
    ticks = []

    monkeypatch.setattr(Node, "poll_s", WAIT_S)
    monkeypatch.setattr(Node, "tick", lambda *_, **__: ticks.append(None) or [])
    run_beside(server, lambda: ask_often(server.addresses[0], 20))
    assert len(ticks) == 1


def test_a_message_that_cannot_be_handled_is_logged_and_survived(server, monkeypatch, caplog):
    found, receive = [], Node.receive

    def fail_at_the_first(node, connection, frames, **facts):
        if decode_request(frames).request == 1:
            raise ZeroDivisionError
        return receive(node, connection, frames, **facts)

    def send():
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
            peer.connect(server.addresses[0])
            for number in (1, 2):
                peer.send_multipart(
                    encode_request(Request(Op.PING, request=number, body=Empty()))
                )
            found.append(decode_reply(peer.recv_multipart()).request)

    monkeypatch.setattr(Node, "receive", fail_at_the_first)
    run_beside(server, send)
    assert found == [2]
    assert caplog.text.count("cannot handle a message") == 1


def test_a_long_walk_of_the_waits_is_not_repeated_for_each_message(server, monkeypatch):
    messages, ticks = 200, []

    def tick(*_, **__):
        ticks.append(time.sleep(0.02))
        return []

    def send():
        ask_often(server.addresses[0], messages)

    monkeypatch.setattr(Node, "is_idle", False)
    monkeypatch.setattr(Node, "tick", tick)
    run_beside(server, send)
    assert len(ticks) < messages / 2


@pytest.fixture
def taken(monkeypatch):
    """``taken(limit)``: bytes of memory of a node that starts with this limit."""

    def nbytes(limit: int | None) -> int:
        asked = []

        def refuse(_name: str, nbytes: int, _node_id: int) -> NodeMemory:
            asked.append(nbytes)
            raise SegmentError("not opened")

        monkeypatch.setattr(NodeMemory, "open", refuse)
        config = NodeConfig((Bind.parse(FREE_PORT),), memory_nbytes=limit)
        with pytest.raises(SegmentError), NodeServer(config).opened():
            raise AssertionError
        return asked[0]

    return nbytes


def test_without_a_limit_the_node_takes_most_of_what_is_free(taken):
    assert room_nbytes() // 2 < taken(None) < room_nbytes() + (1 << 30)


def test_memory_of_an_earlier_run_counts_as_room(monkeypatch, caplog, taken):
    monkeypatch.setattr(node_server, "used_nbytes", lambda _name: 100 << 20)
    monkeypatch.setattr(node_server, "room_nbytes", lambda: 50 << 20)
    for limit, found, warned in (
        (None, 145, 0),
        (150 << 20, 150, 0),
        ((150 << 20) + 1, 150, 1),
    ):
        assert taken(limit) >> 20 == found
        assert caplog.text.count("docker run --shm-size") == warned


def test_a_reply_that_reaches_nobody_is_counted(server, monkeypatch):
    found, send, is_dropped = [], Listener.send, threading.Event()

    def send_but_the_first(*told):
        if is_dropped.is_set():
            return send(*told)
        is_dropped.set()
        return False

    def ask():
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.connect(server.addresses[0])
            peer.send_multipart(encode_request(Request(Op.PING, request=1, body=Empty())))
            is_dropped.wait(WAIT_S)
        with smbox.connect(server.addresses[0], transport="tcp", timeout_s=WAIT_S) as box:
            found.append(box.stats()["replies_dropped"])

    monkeypatch.setattr(Listener, "send", send_but_the_first)
    run_beside(server, ask)
    assert found == [1]


def test_a_silent_client_that_is_connected_keeps_its_session(server, monkeypatch):
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 1)
    monkeypatch.setattr(sessions, "FULL_S", 0.0)
    found, connect = [], partial(smbox.connect, server.addresses[0], transport="tcp")

    def ask():
        with connect(timeout_s=WAIT_S) as box:
            found.append(box.stats()["sessions"])
            with pytest.raises(LimitError):
                connect(timeout_s=WAIT_S)
            found.append(box.stats()["refusals.LIMIT"])

    run_beside(server, ask)
    assert found == [1, 1]


def test_a_limit_above_the_room_of_dev_shm_is_logged(caplog):
    for limit_nbytes, count in ((room_nbytes() // 2, 0), (room_nbytes() * 2, 1)):
        config = NodeConfig((Bind.parse(FREE_PORT),), memory_nbytes=limit_nbytes)
        with NodeServer(config).opened():
            pass
        assert caplog.text.count("docker run --shm-size") == count


def test_an_address_that_lets_everybody_in_is_logged(caplog, tmp_path):
    make_node_key(tmp_path)
    public = "tcp://0.0.0.0:0"
    for address, settings, count in (
        (FREE_PORT, {"insecure": True}, 0),
        (public, {"keys": tmp_path}, 0),
        (public, {"insecure": True}, 1),
    ):
        config = NodeConfig((Bind.parse(address),), memory_nbytes=1 << 24, **settings)
        with NodeServer(config).opened():
            pass
        assert caplog.text.count("INSECURE") == count


@pytest.mark.parametrize("is_taken", [False, True])
def test_the_name_of_a_node_is_its_port_unless_old_memory_has_it(monkeypatch, is_taken):
    monkeypatch.setattr(node_server, "listing", lambda name: [name] if is_taken else [])
    made = NodeServer(NodeConfig((Bind.parse(FREE_PORT),), memory_nbytes=1 << 24))
    with made.opened():
        port = made.addresses[0].rpartition(":")[2]
        assert made.name == (f"{port}-{os.getpid()}" if is_taken else port)


def test_an_exception_leaves_the_memory_in_place():
    name = f"t{secrets.token_hex(4)}"
    config = NodeConfig((Bind.parse(FREE_PORT),), name=name, memory_nbytes=1 << 24)
    with pytest.raises(ZeroDivisionError), NodeServer(config).opened():
        raise ZeroDivisionError
    assert len(listing(f"smbox.{name}.")) > 2
    NodeMemory.open(name, 1 << 24).close(keep=False)
    assert listing(f"smbox.{name}.") == []


def test_a_signal_while_the_memory_is_opened_stops_the_node_cleanly(monkeypatch):
    name, strays, open_memory = f"t{secrets.token_hex(4)}", [], NodeMemory.open

    def open_and_stop(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return open_memory(*arguments)

    made = NodeServer(NodeConfig((Bind.parse(FREE_PORT),), name=name, memory_nbytes=1 << 24))
    monkeypatch.setattr(NodeMemory, "open", open_and_stop)
    before = signal.signal(signal.SIGTERM, lambda *_: strays.append(True))
    try:
        with made.opened():
            made.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert strays == []
    assert listing(f"smbox.{name}.") == []


def test_a_node_may_open_as_many_files_as_the_system_allows():
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = NodeServer(NodeConfig((Bind.parse(FREE_PORT),), memory_nbytes=1 << 24))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before // 2, most))
    try:
        with made.opened():
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
