from __future__ import annotations

import pytest

from memnode.sessions import Session, Sessions, key_of
from smbox.errors import LimitError
from smbox.wire.messages import Hello

A, B = (0, b"a"), (0, b"b")


def hello(client=1, channel=0, generation=0):
    return Hello(
        client_id=client.to_bytes(16, "little"), channel=channel, pid=7, generation=generation
    )


def sessions(**settings):
    return Sessions(**({"expiry_s": 300.0, "sessions_max": 8} | settings))


def test_a_session_is_what_its_hello_says():
    found = sessions()
    session, replaced = found.open(A, hello(3, 2, generation=5), now_s=0.0)
    assert session == Session(A, (3, 2), 7, "", 5)
    assert replaced == []
    assert key_of(hello(3, 2)) == (3, 2)


def test_a_channel_that_comes_back_replaces_its_former_connection():
    found = sessions()
    first, _ = found.open(A, hello(), now_s=0.0)
    second, replaced = found.open(B, hello(), now_s=0.0)
    assert replaced == [first]
    assert found.session(A) is None
    assert found.session(B) is second
    assert len(found) == 1


def test_another_hello_on_a_connection_replaces_its_session():
    found = sessions()
    first, _ = found.open(A, hello(1), now_s=0.0)
    found.open(B, hello(2), now_s=0.0)
    _, replaced = found.open(A, hello(2), now_s=0.0)
    assert {each.connection for each in replaced} == {A, B}
    assert first in replaced
    assert len(found) == 1


def test_channels_of_a_client_are_sessions_of_their_own():
    found = sessions()
    found.open(A, hello(1, 0), now_s=0.0)
    found.open(B, hello(1, 1), now_s=0.0)
    assert len(found) == 2
    assert found.close(A) is not None
    assert found.session(B) is not None
    assert found.close(B) is not None
    assert found.close(B) is None


def test_there_are_only_so_many_sessions():
    found = sessions(sessions_max=1)
    found.open(A, hello(1), now_s=0.0)
    with pytest.raises(LimitError):
        found.open(B, hello(2), now_s=0.0)
    assert found.session(A) is not None
    found.open(B, hello(1), now_s=0.0)  # it replaces itself


def test_silent_channels_expire_and_speaking_ones_do_not():
    found = sessions(expiry_s=300.0)
    found.open(A, hello(1), now_s=0.0)
    found.open(B, hello(2), now_s=0.0)
    found.touch((1, 0), now_s=200.0)
    assert found.expire(now_s=299.0) == []
    [(key, session)] = found.expire(now_s=300.0)
    assert key == (2, 0)
    assert session.connection == B
    assert found.session(B) is None
    assert found.expire(now_s=499.0) == []
    assert len(found.expire(now_s=500.0)) == 1


def test_channels_of_an_earlier_run_expire_unless_they_come_back():
    found = sessions(expiry_s=300.0)
    found.remember([(1, 0), (2, 0)], now_s=0.0)
    found.open(A, hello(1), now_s=100.0)
    assert found.expire(now_s=300.0) == [((2, 0), None)]
