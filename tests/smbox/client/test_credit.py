"""Credit: how many bytes of data a channel may have in flight, and for how long."""

from __future__ import annotations

import pytest

from smbox.config import WINDOW_MAX
from smbox.testing.script_node import ScriptNode
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply
from smbox.wire.ops import Op


@pytest.fixture
def script():
    """A node that lets a channel have two bytes of data in flight, until it grants more."""
    made = ScriptNode()
    made.wire.welcome(welcome(window=WINDOW_MAX, sources_nbytes=2, lent_nbytes=2))
    made.move()
    return made


def begin(script, count):
    """Begin puts of one byte each."""
    for place in range(count):
        script.transfer(place << 30, Op.PUT, 1).begin()


def answer(script, credit_mib=0):
    """Answer the oldest request."""
    asked = script.wire.sent.popleft()
    ids = {"request": asked.request, "number": asked.number}
    script.wire.reply(Reply(Op.PUT, nbytes=asked.nbytes, numbers=credit_mib, **ids))
    script.move()


def test_credit_lapses_when_the_channel_is_idle(script):
    begin(script, 8)
    assert len(script.wire.sent) == 2
    answer(script, credit_mib=1)
    assert len(script.wire.sent) == 7
    while len(script.wire.sent) > 1:
        answer(script)
    begin(script, 3)
    assert len(script.wire.sent) == 4, "one request was in flight: the credit holds"
    while script.wire.sent:
        answer(script)
    begin(script, 8)
    assert len(script.wire.sent) == 2, "none was in flight: the first limit holds again"
    while script.wire.sent:
        answer(script)


def test_as_many_bytes_are_lent_at_once_as_the_node_allows(script):
    for place in range(4):
        script.transfer(place << 30, Op.LEND).begin()
    assert [request.op for request in script.wire.sent] == [Op.LEND] * 2
