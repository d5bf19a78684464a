from __future__ import annotations

from collections import deque

from smbox.paths.link_work import WorkCall
from smbox.wire.codec import Request
from smbox.wire.ops import Op


def test_calls_are_told_apart_even_when_they_say_the_same():
    one, other = (WorkCall(Request(Op.PING), work=None) for _ in range(2))
    assert one != other
    assert other not in deque([one])


def test_a_call_borrows_nothing_unless_it_says_so():
    call = WorkCall(Request(Op.GET, nbytes=4), work=None, first=8, limit=12)
    assert not call.is_borrowed
    assert (call.first, call.limit, call.numbers, call.offers) == (8, 12, 0, 0)
