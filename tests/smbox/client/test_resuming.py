"""What a client sends again after a break: not what may happen twice or has no answer."""

from __future__ import annotations

import pytest

from smbox.client.transfer import Transfer
from smbox.errors import RemoteError, SessionExpiredError
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, refuse
from smbox.wire.ops import Op, Status


def begun(script, op):
    """A request of one byte that was sent, and its message."""
    work = script.transfer(0, op, 1)
    work.begin()
    return work, script.wire.sent.popleft()


def reconnect(script, request, **fields):
    """Let the node have ended the session of a request, and greet the channel again."""
    script.wire.reply(refuse(request, RemoteError("lost"), status=Status.NO_SESSION))
    script.move()
    script.wire.welcome(welcome(**fields))
    script.move()


def test_a_first_change_is_not_sent_again_to_a_node_that_has_forgotten_the_channel(script):
    """The node may have applied it before, so it would happen twice."""
    work, request = begun(script, Op.ACCUMULATE)
    reconnect(script, request, resumed=False)
    with pytest.raises(SessionExpiredError) as caught:
        work.advance(0.0)
    assert caught.value.facts["outcome"] == "unknown"
    assert not script.wire.sent


def test_a_first_change_is_sent_again_to_a_node_that_knows_the_channel(script):
    _, request = begun(script, Op.ACCUMULATE)
    reconnect(script, request, resumed=True)
    assert script.wire.sent.popleft().number == request.number == 1


def test_changes_that_a_node_has_acknowledged_and_lost_are_told(script):
    work, request = begun(script, Op.ACCUMULATE)
    script.wire.reply(Reply(request.op, request=request.request, number=1))
    script.move()
    assert work.advance(0.0)
    read, request = begun(script, Op.GET)
    reconnect(script, request, resumed=True)
    with pytest.raises(SessionExpiredError):
        read.advance(0.0)


def test_a_refused_change_is_not_sent_again_after_an_interrupt(script, monkeypatch):
    def strike(*_):
        raise KeyboardInterrupt

    work, request = begun(script, Op.ACCUMULATE)
    script.wire.reply(refuse(request, RemoteError("no")))
    with monkeypatch.context() as during:
        during.setattr(Transfer, "settle", strike)
        with pytest.raises(KeyboardInterrupt):
            script.move()
    script.move()
    script.wire.welcome(welcome(resumed=True))
    script.move()
    assert not script.wire.sent
    with pytest.raises(RemoteError, match="no"):
        work.advance(0.0)


def test_no_more_answers_are_asked_for_than_the_ring_keeps(script):
    """Else the node might not have the answer to a request that is sent again."""
    for numbers in (1, 2, 2, 2):  # the ring has six entries
        script.transfer(0, Op.FETCH, numbers).begin()
    assert [request.number for request in script.wire.sent] == [1, 2, 4]
