"""How long a connection may be silent before it is dropped."""

from __future__ import annotations

import pytest

from smbox.client.connection import IDLE_S, SILENCE_MAX_S, Connection, Identity
from smbox.config import ClientConfig

CONFIG = ClientConfig("tcp://h:1", resend_after_s=1.0, resend_after_max_s=3.0)
LONG_S = 1000.0


class Silence:
    """A socket whose waits take no real time; a reply comes when the test says so."""

    def __init__(self, clock):
        self.clock = clock
        self.answers_after_s = LONG_S

    def send(self, frames):
        return True

    def receive(self, timeout_s):
        self.clock.now_s += min(timeout_s, self.answers_after_s)
        return [b"answer"] if self.answers_after_s <= timeout_s else None

    def is_released(self):
        return True

    def close(self):
        pass


class Clock:
    def __init__(self):
        self.now_s = 500.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("smbox.client.connection.time", made)
    return made


@pytest.fixture
def connection(clock):
    made = Connection(1, lambda: Silence(clock), Identity(), CONFIG)
    made.expect()
    return made


def silent_s(connection, clock, *, is_greeted):
    """Wait on a fresh socket until it is dropped; tell how long that took."""
    transport = connection.open(1)
    connection.is_greeted = is_greeted
    begun_s = clock.now_s
    while connection.transport is not None:
        assert connection.receive(transport, 0.75) is None
    return clock.now_s - begun_s


def answered_after(connection, wait_s, *, is_greeted):
    transport = connection.open(1)
    connection.is_greeted = is_greeted
    transport.answers_after_s = wait_s
    assert connection.receive(transport, LONG_S) == [b"answer"]
    connection.answered()


def test_a_node_that_is_away_is_greeted_at_growing_pauses(connection, clock):
    away = [silent_s(connection, clock, is_greeted=False) for _ in range(4)]
    assert away == [1, 2, 3, 3]
    answered_after(connection, 0.1, is_greeted=False)
    assert silent_s(connection, clock, is_greeted=False) == 1


def test_patience_with_a_node_that_answers_grows_with_its_answers(connection, clock):
    answered_after(connection, 0.75, is_greeted=True)
    assert silent_s(connection, clock, is_greeted=True) == 1.5
    answered_after(connection, 0.001, is_greeted=True)
    silences = [silent_s(connection, clock, is_greeted=True) for _ in range(7)]
    assert silences == [1, 2, 4, 8, 16, SILENCE_MAX_S, SILENCE_MAX_S]


def test_a_message_that_answers_nothing_does_not_end_the_silence(connection, clock):
    transport = connection.open(1)
    connection.is_greeted = True
    transport.answers_after_s = 0.4
    assert [connection.receive(transport, 0.75) for _ in range(2)] == [[b"answer"]] * 2
    transport.answers_after_s = LONG_S
    begun_s = clock.now_s
    assert connection.receive(transport, 0.75) is None
    assert connection.transport is None
    assert clock.now_s - begun_s == pytest.approx(0.2)


def test_what_the_caller_computes_is_no_silence(connection, clock):
    transport = connection.open(1)
    for _ in range(3):
        clock.now_s += LONG_S
        assert connection.receive(transport, 0.3) is None
    assert connection.transport is transport


def test_a_connection_that_was_silent_for_long_is_stale(connection, clock):
    transport = connection.open(1)
    clock.now_s += IDLE_S
    connection.expect()
    assert connection.transport is transport
    clock.now_s += IDLE_S + 1
    connection.expect()
    assert connection.transport is None
