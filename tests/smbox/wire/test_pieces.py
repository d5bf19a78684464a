"""Cutting ranges at stripes and requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from smbox.wire.ops import SOURCES, Op, count, cut, end_of, unit_of


@pytest.mark.parametrize(
    ("first", "limit", "pieces"),
    [
        (0, 0, []),
        (5, 5, []),
        (0, 4, [(0, 4)]),
        (0, 5, [(0, 4), (4, 5)]),
        (3, 9, [(3, 4), (4, 8), (8, 9)]),
        (4, 8, [(4, 8)]),
    ],
)
def test_cuts_at_multiples(first, limit, pieces):
    assert list(cut(first, limit, 4)) == pieces
    assert count(first, limit, 4) == len(pieces)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 60))
def test_pieces_join_to_the_range(first, nbytes, unit):
    limit = first + nbytes
    pieces = list(cut(first, limit, unit))
    assert [at for at, _ in pieces] + [limit] == [first] + [end for _, end in pieces]
    assert all(at // unit == (end - 1) // unit for at, end in pieces)
    assert count(first, limit, unit) == len(pieces)


def test_what_the_node_copies_is_cut_shorter():
    assert {unit_of(op) >> 20 for op in (*SOURCES, Op.LEND)} == {2}
    assert {unit_of(op) >> 20 for op in (Op.GET, Op.GATHER, Op.FROM, Op.DOT)} == {1}
    assert [end_of(op, 5, 9 << 20) >> 20 for op in (Op.GET, Op.PUT, Op.LEND)] == [1, 2, 2]
    assert end_of(Op.PUT, (3 << 20) + 1, (3 << 20) + 9) == (3 << 20) + 9


def test_a_request_touches_at_most_two_stripes_of_half_its_size():
    stripe = 1 << 19
    for first, limit in cut(3 * stripe - 1, 9 * stripe + 7):
        assert 1 <= count(first, limit, stripe) <= 2
