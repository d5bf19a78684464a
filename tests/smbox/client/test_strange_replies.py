"""Replies of a node that does not keep to the protocol harm nothing but their request."""

from __future__ import annotations

import time

import numpy as np
import pytest

from smbox.client.transfer import Call
from smbox.errors import (
    RemoteError,
    RemoteProtocolError,
    RequestTimeoutError,
    SessionExpiredError,
)
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, decode_request, encode_reply, refuse
from smbox.wire.messages import Create, Empty
from smbox.wire.ops import Op, Status

ONE = np.ones(1, np.float32)


@pytest.fixture
def asked(script):
    """A read that was sent, and its request."""
    work = script.transfer(0, Op.GET)
    work.begin()
    return work, script.wire.sent.popleft()


def test_a_reply_to_another_op_answers_nothing(script, asked):
    work, request = asked
    ids = {"request": request.request, "number": request.number}
    script.wire.reply(Reply(Op.PING, body=Empty(), **ids))
    script.move()
    assert not work.is_done
    script.wire.reply(Reply(Op.GET, nbytes=1, payload=b"x", **ids))
    script.move()
    assert bytes(work.reply.payload) == b"x"


def test_a_second_reply_to_one_read_does_not_answer_the_next_read(script, asked):
    work, request = asked
    later = script.transfer(8, Op.GET)
    later.begin()
    for payload in (b"x", b"y"):
        ids = {"request": request.request, "number": request.number}
        script.wire.reply(Reply(Op.GET, nbytes=1, payload=payload, **ids))
    script.move()
    assert bytes(work.reply.payload) == b"x"
    assert not later.is_done


@pytest.mark.parametrize("more", [{"nbytes": 4}, {"nbytes": 2, "operand": 11}])
def test_an_answer_to_another_range_is_no_answer(script, asked, more):
    work, request = asked
    ids = {"request": request.request, "number": request.number}
    script.wire.reply(Reply(Op.GET, payload=bytes(more["nbytes"]), **ids, **more))
    script.move()
    with pytest.raises(RemoteProtocolError):
        work.advance(0.0)
    assert work.reply is None


def test_a_batch_that_answers_too_little_moves_nothing(node, client, monkeypatch):
    info = client.create(4)
    seen = []
    items = [
        client.operation(info, ONE, first=at, sink=lambda *piece: seen.append(piece))
        for at in (0, 4)
    ]
    receive = node.node.receive

    def short(connection, frames, *, now_s):
        request = decode_request(frames)
        if request.op is not Op.BATCH:
            return receive(connection, frames, now_s=now_s)
        reply = Reply(
            Op.BATCH, request=request.request, number=request.number, nbytes=2, payload=b"1234"
        )
        return [(connection, encode_reply(reply))]

    monkeypatch.setattr(node.node, "receive", short)
    work = client.begun(client.batch(items))
    with pytest.raises(RemoteProtocolError):
        work.advance(time.monotonic() + 30)
    assert seen == []


def test_what_is_said_of_a_held_stripe_displaces_no_fact_of_ours(script, asked):
    work, request = asked
    error = RemoteError("held", holder_pid=7, op="evil", timeout_s=9)
    script.wire.reply(refuse(request, error, status=Status.PARKED))
    script.move()
    with pytest.raises(RequestTimeoutError) as caught:
        work.answer(0.0)
    facts = caught.value.facts
    assert (facts["op"], facts["timeout_s"], facts["holder_pid"]) == ("get", 0.0, 7)


def test_only_the_nodes_work_on_a_request_is_progress(script, asked):
    """Not that it waits for a stripe, nor that it begins again, as after each of its starts."""
    work, request = asked
    working = refuse(request, RemoteError("not done yet"), status=Status.PARKED)
    held = refuse(request, RemoteError("held", holder_pid=7), status=Status.PARKED)
    seen = [work.progress()]
    for reply in (working, held, working):
        script.wire.reply(reply)
        script.move()
        seen.append(work.progress())
    assert seen == [0, 1, 1, 2]
    script.wire.reply(refuse(request, RemoteError("who"), status=Status.NO_SESSION))
    script.move()
    script.wire.welcome(welcome())
    script.move()
    script.wire.reply(refuse(script.wire.sent.popleft(), working.error, status=Status.PARKED))
    script.move()
    assert work.progress() == 2


def test_work_on_a_creation_is_progress_until_the_node_restarts(script):
    """The node goes on with it over a new connection."""
    body = Create(name="w", shape=(1,), dtype="float32", token=bytes(16))
    work, parked = Call(script.channel, Op.CREATE, body), RemoteError("not done yet")
    work.begin()
    for incarnation, progress in ((1, 1), (2, 2), (0, 2)):
        request = script.wire.sent.popleft()
        script.wire.reply(refuse(request, parked, status=Status.PARKED))
        script.wire.reply(refuse(request, RemoteError("who"), status=Status.NO_SESSION))
        script.move()
        assert work.progress() == progress
        script.wire.welcome(welcome(incarnation=incarnation))
        script.move()


def test_a_node_without_an_answer_ends_the_session(script):
    """Else later changes would go on with its numbers, and their requests would fail, too."""
    works = [script.transfer(0, Op.FETCH, 1) for _ in range(2)]
    for work in works:
        work.begin()
    first = script.wire.sent.popleft()
    expired = SessionExpiredError("the ring keeps no answer")
    script.wire.reply(refuse(first, expired, applied=2, status=Status.SESSION_EXPIRED))
    script.move()
    for work in works:
        with pytest.raises(SessionExpiredError) as caught:
            work.advance(0.0)
        assert caught.value.facts["outcome"] == "unknown"
    script.move()
    script.wire.welcome(welcome())
    script.move()
    script.transfer(0, Op.ACCUMULATE, 1).begin()
    assert script.wire.sent.popleft().number == 1


@pytest.mark.parametrize("status", [Status.GAP, Status.NO_SESSION])
def test_who_is_told_that_a_message_was_lost_connects_again_at_once(script, asked, status):
    _, request = asked
    script.wire.reply(refuse(request, RemoteError("lost"), status=status))
    script.move()
    script.wire.welcome(welcome(resumed=True))
    script.move()
    assert len(script.wires) == 2
    assert script.wire.sent.popleft().op is Op.GET


def test_a_timeout_tells_that_the_array_is_still_read(script, asked, monkeypatch):
    monkeypatch.setattr("smbox.client.channel.RELEASE_S", 0.0)
    work, _ = asked
    script.wire.is_lent = True
    assert "array" not in work.facts()
    with pytest.raises(RequestTimeoutError) as caught:
        work.answer(0.0)
    assert "do not reuse" in caught.value.facts["array"]
