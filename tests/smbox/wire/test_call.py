"""What a call knows of itself."""

from __future__ import annotations

import pytest

from smbox.errors import RemoteProtocolError
from smbox.wire.batch import Item
from smbox.wire.call import Call
from smbox.wire.codec import Reply, Request, decode_request
from smbox.wire.messages import ErrorBody
from smbox.wire.ops import Op
from smbox.wire.status import Status


@pytest.mark.parametrize(("applied", "done"), [(0, 0), (4, 0), (5, 1), (6, 2), (99, 2)])
def test_a_refused_call_counts_what_happened(applied, done):
    call = Call(Request(Op.PUT, number=5), 2)
    assert call.done == 0
    call.reply = Reply(Op.PUT, Status.REGION_FREED, error=ErrorBody(applied=applied))
    assert call.done == done


def test_an_answered_call_is_done():
    call = Call(Request(Op.PUT, number=5), 2, Reply(Op.PUT))
    assert (call.done, call.last) == (2, 6)


def test_who_needs_an_answer():
    assert not Call(Request(Op.PUT), 1).needs_answer
    assert Call(Request(Op.ELASTIC), 1).needs_answer
    assert Call(Request(Op.GET)).needs_answer


def test_who_fills_the_ring():
    put, fetch = (Item(op, 1, 0, 4, bytes(4)) for op in (Op.PUT, Op.FETCH))
    assert not Call(Request(Op.GET)).fills_ring
    assert not Call(Request(Op.PUT), 1).fills_ring
    assert Call(Request(Op.ELASTIC), 1).fills_ring
    assert not Call(Request(Op.BATCH, items=(put, put)), 2).fills_ring
    assert Call(Request(Op.BATCH, items=(put, fetch)), 2).fills_ring


def test_what_the_node_holds_of_a_call_while_nobody_reads():
    put, fetch = (Item(op, 1, 0, 4, bytes(4)) for op in (Op.PUT, Op.FETCH))
    assert Call(Request(Op.GET, nbytes=8)).held_nbytes == 8
    assert Call(Request(Op.PUT, nbytes=8, payload=bytes(8)), 1).held_nbytes == 0
    assert Call(Request(Op.ELASTIC, nbytes=8, payload=bytes(8)), 1).held_nbytes == 0
    assert Call(Request(Op.BATCH, items=(put, put)), 2).held_nbytes == 0
    assert Call(Request(Op.BATCH, items=(put, fetch)), 2).held_nbytes == 12


def test_what_comes_without_a_copy_at_the_node():
    lend = Call(Request(Op.LEND, nbytes=8))
    assert (lend.lent_nbytes, lend.held_nbytes) == (8, 0)
    assert lend.needs_answer
    assert Call(Request(Op.GET, nbytes=8)).lent_nbytes == 0
    stamps = Call(Request(Op.STAMPS, nbytes=1 << 30))
    assert (stamps.lent_nbytes, stamps.held_nbytes) == (0, 0)


def test_what_a_call_brings():
    item = Item(Op.PUT, 1, 0, 4, bytes(4))
    assert Call(Request(Op.PUT, nbytes=8, payload=bytes(8)), 1).source_nbytes == 8
    assert Call(Request(Op.BATCH, items=(item, item)), 2).source_nbytes == 8
    assert Call(Request(Op.GET, nbytes=8)).source_nbytes == 0


def test_frames_are_the_request():
    request = Request(Op.PUT, 3, 4, 4096, 2, kernel=1, payload=b"ab")
    assert decode_request(Call(request, 1).frames()) == request


def test_whose_reply_it_is():
    call = Call(Request(Op.PUT, 7, number=5), 1)
    assert call.is_answered_by(Reply(Op.PUT, request=7, number=5))
    assert not call.is_answered_by(Reply(Op.PUT, request=7, number=4))
    with pytest.raises(RemoteProtocolError):
        call.is_answered_by(Reply(Op.FETCH, request=7, number=5))
