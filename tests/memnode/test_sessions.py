from __future__ import annotations

from types import SimpleNamespace

import pytest

from memnode.sessions import EXPIRY_S, Sessions
from smbox.errors import LimitError

A, B = (0, b"a"), (0, b"b")
ONE, TWO = (1, 0), (2, 0)


@pytest.fixture
def sessions():
    return Sessions()


def begin(sessions, connection, key, *, now_s=0.0):
    """Do what the node does at a HELLO; returns the channel, and those that it replaced."""
    replaced = sessions.replaced_by(connection, key)
    for former in replaced:
        sessions.end(former)
    channel = SimpleNamespace(connection=connection, key=key, heard_s=now_s)
    sessions.begin(channel)
    return channel, replaced


def test_a_channel_that_comes_back_replaces_its_former_connection(sessions):
    first, replaced = begin(sessions, A, ONE)
    assert replaced == []
    second, replaced = begin(sessions, B, ONE)
    assert replaced == [first]
    assert sessions.by_connection == {B: second}


def test_another_hello_on_a_connection_replaces_its_session(sessions):
    first, _ = begin(sessions, A, ONE)
    second, _ = begin(sessions, B, TWO)
    third, replaced = begin(sessions, A, TWO)
    assert replaced == [first, second]
    assert sessions.by_connection == {A: third}


def test_channels_of_a_client_are_sessions_of_their_own(sessions):
    first, _ = begin(sessions, A, (1, 0))
    second, _ = begin(sessions, B, (1, 1))
    sessions.end(first)
    assert sessions.by_connection == {B: second}


def test_there_are_only_so_many_sessions():
    sessions = Sessions(sessions_max=1)
    first, _ = begin(sessions, A, ONE)
    with pytest.raises(LimitError):
        sessions.replaced_by(B, TWO)
    assert sessions.by_connection == {A: first}
    begin(sessions, B, ONE)  # it replaces itself


def test_silent_channels_expire_and_speaking_ones_do_not(sessions):
    first, _ = begin(sessions, A, ONE)
    second, _ = begin(sessions, B, TWO)
    first.heard_s = 200.0
    assert sessions.expired(now_s=EXPIRY_S - 1) == []
    assert sessions.expired(now_s=EXPIRY_S) == [(TWO, second)]
    assert sessions.expired(now_s=200.0 + EXPIRY_S) == [(ONE, first), (TWO, second)]


def test_the_silence_of_a_channel_goes_on_without_its_connection(sessions):
    first, _ = begin(sessions, A, ONE, now_s=100.0)
    sessions.end(first)
    assert sessions.expired(now_s=99.0 + EXPIRY_S) == []
    assert sessions.expired(now_s=100.0 + EXPIRY_S) == [(ONE, None)]
    sessions.forget(ONE)
    sessions.forget(ONE)
    assert sessions.expired(now_s=100.0 + EXPIRY_S) == []


def test_channels_of_an_earlier_run_expire_unless_they_come_back(sessions):
    sessions.expect([ONE, TWO], now_s=0.0)
    begin(sessions, A, ONE, now_s=100.0)
    assert sessions.expired(now_s=EXPIRY_S) == [(TWO, None)]
