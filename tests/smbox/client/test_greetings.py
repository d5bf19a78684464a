"""Replies to a HELLO that a channel sends after a break, while a request is in flight."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import (
    AccessDeniedError,
    NodeStoppingError,
    PeerLostError,
    RemoteError,
    SessionExpiredError,
)
from smbox.testing.script_node import ScriptNode
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, decode_request, encode_reply, refuse
from smbox.wire.ops import Op, Status


@pytest.fixture
def read(script):
    """A read in flight whose channel greets its node again."""
    work = script.transfer(0, Op.GET)
    work.begin()
    lost = refuse(script.wire.sent.popleft(), RemoteError("lost"), status=Status.NO_SESSION)
    script.wire.reply(lost)
    script.move()
    return work


def test_another_memory_at_the_address_is_told(script, read):
    script.wire.welcome(welcome(node_uuid=bytes(range(16)), resumed=True))
    script.move()
    with pytest.raises(PeerLostError, match="another memory") as caught:
        read.advance(0.0)
    assert caught.value.facts["outcome"] == "unknown"
    assert not script.wire.sent
    connections = len(script.wires)
    with pytest.raises(PeerLostError, match="another memory"):
        script.transfer(0, Op.GET).advance(0.0)
    assert len(script.wires) == connections  # it connects to that memory no more


def test_a_client_that_is_not_known_any_more_has_lost_its_session(script, read):
    denied = AccessDeniedError("prove that you share the host")
    script.wire.reply(refuse(script.wire.greeting, denied))
    script.move()
    with pytest.raises(SessionExpiredError, match="does not know") as caught:
        read.advance(0.0)
    assert caught.value.facts["outcome"] == "unknown"


def test_a_second_welcome_sends_nothing_again(script, read):
    greeting = script.wire.greeting
    script.wire.welcome(welcome(resumed=True))
    again = welcome(resumed=True)
    script.wire.reply(Reply(Op.HELLO, request=greeting.request, body=again))
    script.move()
    assert [request.op for request in script.wire.sent] == [Op.GET]


def test_a_cancelled_change_is_no_work_to_close_for(script):
    work = script.transfer(0, Op.ACCUMULATE, 1)
    work.begin()
    assert script.channel.has_work()
    work.cancel()
    assert not script.channel.has_work()


def test_a_node_that_stops_is_greeted_again_as_long_as_a_change_waits(
    node, client, monkeypatch
):
    """Its memory may be there again once it has restarted."""
    info, ones = client.create(4), np.ones(4, np.float32)
    client.finish(client.change(info, ones))
    answers = {
        Op.ACCUMULATE: (RemoteError("lost"), Status.NO_SESSION),
        Op.HELLO: (NodeStoppingError("stopping"), None),
    }
    receive = node.node.receive

    def refuse_once(connection, frames, *, now_s):
        request = decode_request(frames)
        if request.op not in answers:
            return receive(connection, frames, now_s=now_s)
        error, status = answers.pop(request.op)
        return [(connection, encode_reply(refuse(request, error, status=status)))]

    monkeypatch.setattr(node.node, "receive", refuse_once)
    client.finish(client.change(info, ones))
    assert answers == {}
    assert (client.get(info) == 2).all()


def test_nothing_is_sent_before_the_node_has_answered_the_greeting():
    script = ScriptNode()
    script.transfer(0, Op.GET).begin()
    assert script.wire.greeting is not None
    assert not script.wire.sent
    script.wire.welcome(welcome())
    script.move()
    assert [request.op for request in script.wire.sent] == [Op.GET]
