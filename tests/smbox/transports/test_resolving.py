from __future__ import annotations

import contextlib
import socket
import threading

import pytest
import zmq

from smbox.transports import zeromq
from smbox.transports.zeromq import ZmqTransport, resolution_error

WITH_SOURCE = "tcp://127.0.0.1:0;localhost:1"


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1", WITH_SOURCE, "ipc:///nowhere"],
)
def test_what_has_an_address_has_no_reason(address: str):
    assert resolution_error(address) is None


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_a_name_that_nobody_knows_has_one(host: str, monkeypatch):
    monkeypatch.setattr(zeromq, "RESOLVE_S", 20.0)  # a slow name server is no failure here
    assert resolution_error(f"tcp://{host}:5555")


def test_a_name_server_that_does_not_answer_keeps_nobody_waiting(monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answers.wait())
    monkeypatch.setattr(zeromq, "RESOLVE_S", 0.01)
    assert resolution_error("tcp://node:5555") is None
    answers.set()


def test_a_node_may_have_an_ipv6_address():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger, router.ipv6, router.rcvtimeo = 0, 1, 30_000
        try:
            port = router.bind_to_random_port("tcp://[::1]")
        except zmq.ZMQError:
            pytest.skip("this host has no IPv6")
        with contextlib.closing(ZmqTransport(f"tcp://[::1]:{port}", queue_max=4)) as transport:
            transport.send([b"here"])
            assert router.recv_multipart()[1] == b"here"
