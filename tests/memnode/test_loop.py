"""The loop of a node in this process: its ticks, its errors, and the memory that it takes."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time

import pytest
import zmq

from memnode import server as node_server
from memnode.config import Bind, NodeConfig
from memnode.node import Node
from memnode.server import NodeServer
from smbox.memory.node_memory import NodeMemory
from smbox.memory.segment import listing, room_nbytes
from smbox.wire.codec import Request, encode_request
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


def test_what_goes_wrong_between_messages_is_logged_and_survived(server, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(server._node, "tick", lambda **_: 1 / 0)
        server._tick(server._node)
    assert "cannot run parked requests" in caplog.text
    caplog.clear()


def test_a_long_walk_of_the_waits_is_not_repeated_for_each_message(server, monkeypatch):
    messages, ticks = 200, []

    def tick(**_):
        ticks.append(time.sleep(0.02))
        return []

    def send():
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.connect(server.addresses[0])
            for number in range(1, messages + 1):
                peer.send_multipart(
                    encode_request(Request(Op.PING, request=number, body=Empty()))
                )
                peer.recv_multipart()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Node, "is_idle", False)
    monkeypatch.setattr(server._node, "tick", tick)
    thread = threading.Thread(target=send)
    thread.start()
    server.run()
    thread.join(WAIT_S)
    assert len(ticks) < messages / 2


def test_without_a_limit_the_node_takes_most_of_what_is_free(server):
    free = NodeServer(NodeConfig((Bind.parse(FREE_PORT),)))._memory_nbytes(server.name)
    assert room_nbytes() // 2 < free < room_nbytes() + (1 << 30)


def test_memory_of_an_earlier_run_counts_as_room(monkeypatch, caplog):
    monkeypatch.setattr(node_server, "used_nbytes", lambda _name: 100 << 20)
    monkeypatch.setattr(node_server, "room_nbytes", lambda: 50 << 20)
    for limit, found, warned in (
        (None, 145, 0),
        (150 << 20, 150, 0),
        ((150 << 20) + 1, 150, 1),
    ):
        config = NodeConfig((Bind.parse(FREE_PORT),), memory_nbytes=limit)
        assert NodeServer(config)._memory_nbytes("any") >> 20 == found
        assert caplog.text.count("docker run --shm-size") == warned


def test_a_reply_that_reaches_nobody_is_counted(server):
    server._send(server._node, [((0, b"nobody"), [b"reply"])])
    assert server._node.context.metrics.replies_dropped == 1


def test_a_limit_above_the_room_of_dev_shm_is_logged(caplog):
    for limit_nbytes, count in ((room_nbytes() // 2, 0), (room_nbytes() * 2, 1)):
        config = NodeConfig((Bind.parse(FREE_PORT),), memory_nbytes=limit_nbytes)
        with NodeServer(config).opened():
            pass
        assert caplog.text.count("docker run --shm-size") == count


def test_an_exception_leaves_the_memory_in_place():
    name = f"t{secrets.token_hex(4)}"
    config = NodeConfig((Bind.parse(FREE_PORT),), name=name, memory_nbytes=1 << 24)
    with pytest.raises(ZeroDivisionError), NodeServer(config).opened():
        raise ZeroDivisionError
    assert len(listing(f"smbox.{name}.")) > 2
    NodeMemory.open(name, 1 << 24).close(keep=False)
    assert listing(f"smbox.{name}.") == []
