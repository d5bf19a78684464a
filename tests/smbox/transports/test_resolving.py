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


HOSTS = {"both": {socket.AF_INET, socket.AF_INET6}, "old": {socket.AF_INET}}
HOSTS |= {"new": {socket.AF_INET6}}


@pytest.mark.parametrize(
    ("host", "is_known"), [("both", 1), ("old", 1), ("new", 0), ("[new]", 1), ("[old]", 0)]
)
def test_a_name_stands_for_its_ipv4_address_and_in_brackets_for_its_ipv6_address(
    host: str, is_known: int, monkeypatch
):
    """As for names that nodes bind. ZeroMQ would prefer an IPv6 address, and try no other."""

    def look_up(name, _, family):
        if family not in HOSTS[name]:
            raise socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    reason = resolution_error(f"tcp://{host}:1")
    assert (reason is None) == is_known
    assert is_known or "tcp://[host]:port" in reason
    with contextlib.closing(ZmqTransport(f"tcp://{host}:1", queue_max=4)) as transport:
        assert transport._socket.getsockopt(zmq.IPV6) == ("[" in host)


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
