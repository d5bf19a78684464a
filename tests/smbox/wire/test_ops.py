"""The tables of operations."""

from __future__ import annotations

from smbox.wire.messages import REPLIES, REQUESTS
from smbox.wire.ops import ANSWERS, CHANGES, CONTROL, OP_OF, OPERANDS, SOURCES, Op


def test_numbers_are_never_reused():
    assert {op.name: int(op) for op in Op} == {
        "HELLO": 1,
        "BYE": 2,
        "PING": 3,
        "CREATE": 4,
        "PUBLISH": 5,
        "ATTACH": 6,
        "FREE": 7,
        "LIST": 8,
        "STATS": 9,
        "GET": 16,
        "PUT": 17,
        "ACCUMULATE": 18,
        "ELASTIC": 19,
        "FETCH": 20,
        "WAIT": 21,
        "BATCH": 22,
        "GATHER": 23,
        "FROM": 24,
        "UPDATE": 26,
        "SNAPSHOT": 27,
        "LEND": 28,
        "STAMPS": 29,
        "DOT": 30,
    }
    assert {OP_OF[int(op)] for op in Op} == set(Op)
    assert 25 not in OP_OF  # WIDE, which is retired


def test_control_ops_are_those_with_bodies():
    assert CONTROL == set(REQUESTS) == set(REPLIES)


def test_changes_carry_sources_and_control_changes_nothing():
    assert SOURCES | {Op.BATCH, Op.FROM, Op.UPDATE} == CHANGES
    assert not SOURCES & OPERANDS
    assert not CONTROL & (CHANGES | ANSWERS)
