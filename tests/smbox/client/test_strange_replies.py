"""Replies of a node that does not keep to the protocol harm nothing but their request."""

from __future__ import annotations

import pytest

from smbox.errors import RemoteError, RequestTimeoutError
from smbox.testing.script_node import ScriptNode
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, refuse
from smbox.wire.messages import Empty
from smbox.wire.ops import Op
from smbox.wire.status import Status


@pytest.fixture
def script():
    made = ScriptNode()
    made.wire.welcome(welcome())
    made.move()
    return made


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


def test_what_is_said_of_a_held_stripe_displaces_no_fact_of_ours(script, asked):
    work, request = asked
    error = RemoteError("held", holder_pid=7, op="evil", timeout_s=9)
    script.wire.reply(refuse(request, error, status=Status.PARKED))
    script.move()
    with pytest.raises(RequestTimeoutError) as caught:
        work.answer(0.0)
    facts = caught.value.facts
    assert (facts["op"], facts["timeout_s"], facts["holder_pid"]) == ("get", 0.0, 7)
