"""Looks at nodes that do not answer as they should."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from pathlib import Path

import pytest
import zmq

from smbox.errors import AccessDeniedError
from smbox.keys import ClientKey
from smbox.transports.handshake import PROBE_S, SIGNATURE, handshake_error


@pytest.fixture
def dripping():
    """The address of a server that greets with a byte now and then."""
    ended = threading.Event()

    def drip():
        with contextlib.suppress(OSError):
            peer = server.accept()[0]
            with peer:
                while not ended.wait(0.2):
                    peer.sendall(b"\xff")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join()


def test_a_greeting_that_comes_byte_by_byte_is_not_waited_for(dripping):
    began_s = time.monotonic()
    assert handshake_error(dripping, None, math.inf) is None
    assert time.monotonic() - began_s < 2 * PROBE_S


def test_a_deadline_ends_a_look_at_a_greeting_that_never_ends(dripping):
    began_s = time.monotonic()
    assert handshake_error(dripping, None, began_s + 0.1) is None
    assert time.monotonic() - began_s < PROBE_S / 2


def test_a_name_server_that_does_not_answer_keeps_nobody_waiting(monkeypatch):
    answers = threading.Event()

    def look_up(*_):
        answers.wait(20.0)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    began_s = time.monotonic()
    assert handshake_error("tcp://node:5555", None, began_s + 0.1) is None
    assert time.monotonic() - began_s < PROBE_S / 2
    answers.set()


def test_a_name_that_no_host_can_have_is_no_failure():
    assert handshake_error("tcp://a..b:5555", None, math.inf) is None


def served_at(host):
    """Return a server at an address of this host, with its scope (``fe80::1%eth0``)."""
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address, family=family)


def link_local_address():
    """Return a link-local address with its scope; without one, one that cannot be bound."""
    with contextlib.suppress(OSError):  # without IPv6 the kernel has no such list
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, interface = line.split()
            if scope == "20":
                host = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                return f"{host}%{interface}"
    return "fe80::1%lo"


def greeting(mechanism):
    return SIGNATURE + b"\0" + mechanism.ljust(20, b"\0") + bytes(32)


@pytest.fixture
def greeted():
    """Returns the address of a server that greets with some bytes, and hangs up, some times."""
    with contextlib.ExitStack() as stack:

        def at(text, host="127.0.0.1", times=1):
            server = stack.enter_context(served_at(host))

            def greet():
                for _ in range(times):
                    with contextlib.suppress(OSError), server.accept()[0] as peer:
                        peer.recv(len(SIGNATURE))  # else closing would take the greeting back
                        peer.sendall(text)

            thread = threading.Thread(target=greet, daemon=True)
            thread.start()
            shown = f"[{host}]" if ":" in host else host
            return f"tcp://{shown}:{server.getsockname()[1]}"

        yield at


@pytest.fixture
def key():
    own, node = zmq.curve_keypair(), zmq.curve_keypair()[0]
    return ClientKey(own[0].decode(), own[1].decode(), name="me", node=node.decode())


@pytest.fixture(params=["127.0.0.1", "::1", "link-local"])
def host(request):
    host = link_local_address() if request.param == "link-local" else request.param
    try:
        served_at(host).close()
    except OSError:
        pytest.skip("this host has no such address")
    return host


def test_a_client_without_a_key_is_told_to_get_one(greeted, host):
    error = handshake_error(greeted(greeting(b"CURVE"), host), None, math.inf)
    assert isinstance(error, AccessDeniedError)


def test_what_listens_at_an_address_of_the_other_family_is_not_asked(greeted, monkeypatch):
    """A client without a key was told to get one for a node that ZeroMQ does not connect to."""
    address = greeted(greeting(b"CURVE"))
    found = socket.getaddrinfo
    monkeypatch.setattr(  # a name with both addresses, as localhost on most distributions
        socket, "getaddrinfo", lambda _, port, *rest: found("127.0.0.1", port, *rest)
    )
    assert handshake_error(address.replace("127.0.0.1", "[::1]"), None, math.inf) is None
    assert isinstance(handshake_error(address, None, math.inf), AccessDeniedError)


def test_only_a_node_that_encrypts_asks_for_a_key(greeted):
    source = greeted(greeting(b"CURVE")).replace("tcp://", "tcp://127.0.0.1:0;")
    assert isinstance(handshake_error(source, None, math.inf), AccessDeniedError)
    for mechanism in (b"NULL", b"PLAIN"):  # a key would not help
        assert handshake_error(greeted(greeting(mechanism)), None, math.inf) is None


def test_a_client_with_a_key_looks_no_further_where_no_node_greets(greeted, key):
    error = handshake_error(greeted(greeting(b"NULL")), key, math.inf)
    assert "encrypts nothing" in str(error)
    began_s = time.monotonic()
    for text in (b"", greeting(b"CURVE")[:-1]):
        assert handshake_error(greeted(text), key, math.inf) is None
    assert time.monotonic() - began_s < PROBE_S


def test_a_node_with_another_key_is_refused(host, key):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as node:
        node.linger, node.ipv6, node.curve_server = 0, 1, 1
        node.curve_secretkey = zmq.curve_keypair()[1]
        shown = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        address = f"{shown}:{node.bind_to_random_port(shown)}"
        error = handshake_error(address, key, math.inf)
    assert "another node answers at this address" in str(error)


def test_a_handshake_that_never_ends_is_not_waited_for(greeted, key):
    began_s = time.monotonic()
    assert handshake_error(greeted(greeting(b"CURVE")), key, began_s + 0.1) is None
    lost_once = greeted(greeting(b"CURVE"), times=2)  # which is not an answer yet
    assert handshake_error(lost_once, key, began_s + 0.5) is None
    assert time.monotonic() - began_s < PROBE_S
