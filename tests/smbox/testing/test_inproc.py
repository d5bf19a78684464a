from __future__ import annotations

import pytest

from smbox.errors import TransportError
from smbox.testing.inproc import InprocHub

WAIT_S = 30.0


def echo(connection, frames):
    return [(connection, frames)] if frames else []


def test_a_message_is_handled_inside_send():
    seen = []
    transport = InprocHub(lambda connection, frames: seen.append(frames) or []).connect()
    assert transport.send([b"header", bytearray(b"body")])
    assert seen == [[b"header", b"body"]]


def test_messages_are_copied():
    transport = InprocHub(echo).connect()
    body = bytearray(b"body")
    transport.send([b"header", body])
    body[:] = b"gone"
    assert transport.receive(0.0) == [b"header", b"body"]


def test_nothing_to_receive_is_none():
    assert InprocHub(echo).connect().receive(0.0) is None


def test_answers_go_to_their_own_connection():
    seen = []

    def crossed(connection, frames):
        seen.append(connection)
        return [(seen[0], [b"for the first"])] if frames and len(seen) > 1 else []

    hub = InprocHub(crossed)
    first, second = hub.connect(), hub.connect()
    first.send([b"1"])
    second.send([b"2"])
    assert first.receive(0.0) == [b"for the first"]
    assert second.receive(0.0) is None


def test_a_waiting_client_lets_the_handler_see_time_pass():
    idle = []

    def late(connection, frames):
        idle.append(frames)
        return [(connection, [b"late"])] if len(idle) == 3 else []

    transport = InprocHub(late).connect()
    assert transport.receive(WAIT_S) == [b"late"]
    assert idle == [[], [], []]


def test_a_closed_connection_hears_nothing_more():
    hub = InprocHub(echo)
    transport = hub.connect()
    transport.send([b"1"])
    transport.close()
    transport.close()
    with pytest.raises(TransportError):
        transport.receive(0.0)
    with pytest.raises(TransportError):
        transport.send([b"2"])
