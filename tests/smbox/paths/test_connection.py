from __future__ import annotations

import itertools
import time

import pytest

from smbox.config import ClientConfig
from smbox.errors import LimitError, NodeStoppingError, SessionExpiredError
from smbox.paths.connection import Connection, Heard
from smbox.testing.welcome import welcome
from smbox.transports.inproc import InprocHub
from smbox.wire.codec import Reply, Request, decode_request, encode_reply
from smbox.wire.messages import Empty, Hello
from smbox.wire.ops import Op
from smbox.wire.refusal import refuse
from smbox.wire.status import Status

WAIT_S = 30.0
CONFIG = ClientConfig(resend_after_s=0.01, resend_after_max_s=0.04)


class Script:
    """A node that answers each request by the next function of its script, or by default."""

    def __init__(self):
        self.seen = []
        self.answers = []
        self.opened = 0
        hub = InprocHub(self.handle)
        self.hub = hub

    def connect(self):
        self.opened += 1
        return self.hub.connect()

    def handle(self, connection, frames):
        if not frames:
            return []
        request = decode_request(frames)
        self.seen.append((connection, request.op))
        answer = self.answers.pop(0) if self.answers else plainly
        reply = answer(request)
        return [] if reply is None else [(connection, encode_reply(reply))]


def plainly(request):
    body = welcome() if request.op is Op.HELLO else Empty()
    return Reply(request.op, request=request.request, number=request.number, body=body)


def silently(request):
    return None


def refusing(error, status=None):
    return lambda request: refuse(request, error, status=status)


@pytest.fixture
def script():
    return Script()


@pytest.fixture
def connection(script):
    hellos = itertools.count()
    made = Connection(
        script.connect, lambda: Hello(client_id=bytes(16), channel=next(hellos)), CONFIG
    )
    yield made
    made.disconnect()


def nothing():
    pass


def heard_until(connection, wanted):
    """Receive and send on until ``wanted`` is heard."""
    for _ in range(1000):
        connection.send(nothing)
        heard = connection.receive(0.005)
        if heard is wanted:
            return
    raise AssertionError(f"never heard {wanted}")


def ping(connection):
    return connection.session.begin(Request(Op.PING, body=Empty()))


def test_the_greeting_comes_first_and_the_call_after_the_welcome(script, connection):
    call = ping(connection)
    connection.send(nothing)
    assert [op for _, op in script.seen] == [Op.HELLO]
    assert connection.receive(WAIT_S) is Heard.GREETING
    connection.send(nothing)
    assert connection.receive(WAIT_S) is call
    assert connection.receive(0.0) is Heard.NOTHING
    assert script.opened == 1


def test_silence_is_answered_by_a_fresh_connection(script, connection):
    script.answers = [silently, silently, plainly, silently]
    call = ping(connection)
    heard_until(connection, call)
    assert script.opened >= 3
    assert [op for _, op in script.seen].count(Op.HELLO) == script.opened
    assert len({peer for peer, _ in script.seen}) == script.opened


class SlowLine:
    """A connection whose every message but a greeting takes its time, each time anew."""

    def __init__(self, inner, takes_s):
        self.name = inner.name
        self._inner = inner
        self._takes_s = takes_s
        self._ready_s = 0.0
        self.close, self.abandon = inner.close, inner.abandon

    def send(self, frames, *, lent=False):
        is_greeting = decode_request(frames).op is Op.HELLO
        self._ready_s = 0.0 if is_greeting else time.monotonic() + self._takes_s
        return self._inner.send(frames, lent=lent)

    def receive(self, timeout_s):
        time.sleep(max(0.0, min(timeout_s, self._ready_s - time.monotonic())))
        return self._inner.receive(0.0) if time.monotonic() >= self._ready_s else None


def test_what_takes_longer_than_a_greeting_may_take_arrives(script, connection, monkeypatch):
    takes_s = 3 * CONFIG.resend_after_max_s
    monkeypatch.setattr(
        connection, "_open_transport", lambda: SlowLine(script.connect(), takes_s)
    )
    heard_until(connection, ping(connection))
    opened = script.opened
    assert opened > 1  # or the line was not slow
    for _ in range(3):
        heard_until(connection, ping(connection))
    assert script.opened == opened  # it knows by now


def test_patience_with_a_node_that_greets_and_is_silent_doubles(script, connection):
    begun_s = time.monotonic()
    script.answers = [plainly, silently] * 6
    heard_until(connection, ping(connection))
    assert script.opened == 7
    assert time.monotonic() - begun_s >= (2**6 - 1) * CONFIG.resend_after_s


def test_a_caller_that_computes_does_not_make_the_node_slow(script, connection):
    heard_until(connection, ping(connection))
    call = ping(connection)
    connection.send(nothing)
    time.sleep(20 * CONFIG.resend_after_s)
    assert connection.receive(WAIT_S) is call
    assert connection._patience_s == CONFIG.resend_after_s


def test_what_was_waited_for_in_vain_is_not_the_next_answers(script, connection):
    heard_until(connection, ping(connection))
    limit_s = time.monotonic() + 20 * CONFIG.resend_after_s
    while time.monotonic() < limit_s:  # nothing is due, so nothing comes
        connection.receive(0.005)
    connection.expect()
    heard_until(connection, ping(connection))
    assert connection._patience_s < 10 * CONFIG.resend_after_s


def test_patience_waits_only_when_something_is_due(script, connection):
    heard_until(connection, ping(connection))
    for _ in range(10):
        assert connection.receive(0.005) is Heard.NOTHING
    assert script.opened == 1


def test_a_node_that_does_not_know_us_is_greeted_again(script, connection):
    script.answers = [plainly, refusing(LimitError("who?"), Status.NO_SESSION)]
    heard_until(connection, ping(connection))
    assert [op for _, op in script.seen] == [Op.HELLO, Op.PING, Op.HELLO, Op.PING]
    assert script.opened == 2


@pytest.mark.parametrize("error", [NodeStoppingError, LimitError])
def test_a_refused_first_greeting_is_an_error(script, connection, error):
    script.answers = [refusing(error("no"))]
    ping(connection)
    connection.send(nothing)
    with pytest.raises(error):
        connection.receive(WAIT_S)


def test_a_node_that_stops_may_be_followed_by_one_that_goes_on(script, connection):
    heard_until(connection, ping(connection))
    script.answers = [silently, refusing(NodeStoppingError("later"))]
    heard_until(connection, ping(connection))


def test_a_node_that_denies_us_later_has_other_memory(script, connection):
    heard_until(connection, ping(connection))
    denied = refusing(LimitError("cookie"), Status.ACCESS_DENIED)
    script.answers = [silently, denied]
    call = ping(connection)
    with pytest.raises(SessionExpiredError):
        heard_until(connection, call)
    connection.renew()
    heard_until(connection, ping(connection))


def test_after_long_silence_the_node_is_greeted_first(script, connection, monkeypatch):
    heard_until(connection, ping(connection))
    connection.expect()
    assert script.opened == 1
    monkeypatch.setattr("smbox.paths.connection.IDLE_S", 0.0)
    connection.expect()
    heard_until(connection, ping(connection))
    assert script.opened == 2


def test_goodbye_is_said_once_somebody_listens(script, connection):
    connection.say_bye()
    assert script.seen == []
    heard_until(connection, ping(connection))
    connection.say_bye()
    assert script.seen[-1][1] is Op.BYE


def test_abandoning_sends_nothing(script, connection):
    heard_until(connection, ping(connection))
    before = len(script.seen)
    connection.abandon()
    assert len(script.seen) == before
