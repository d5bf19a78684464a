from __future__ import annotations

import itertools

import numpy as np
import pytest

from smbox.memory import stamps
from smbox.memory.change import Change
from smbox.memory.commit import commit
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.mapped import Piece
from smbox.memory.stamps import CHANGING, joined, stamp_of

LAST = 3 * STRIPE_NBYTES


@pytest.fixture
def region(make):
    return make(np.zeros(LAST, np.uint8))


def change(memory, region, stripe):
    first = stripe * STRIPE_NBYTES
    one = Change(KernelCode.SUM, np.ones(1, np.uint8), 1)
    commit(memory.writer, region, Piece(stripe, first, first + 1), one)


def test_every_commit_in_the_range_changes_the_stamp(memory, region):
    seen = {stamp_of(region, 0, LAST)}
    for stripe in (0, 2, 2, 1):
        change(memory, region, stripe)
        seen.add(stamp_of(region, 0, LAST))
    assert len(seen) == 5
    assert CHANGING not in seen


def test_a_commit_elsewhere_does_not(memory, region):
    middle = STRIPE_NBYTES, 2 * STRIPE_NBYTES
    before = stamp_of(region, *middle)
    for stripe in (0, 2):
        change(memory, region, stripe)
    assert stamp_of(region, *middle) == before
    change(memory, region, 1)
    assert stamp_of(region, middle[0], middle[0] + 1) > before


def test_what_is_being_changed_has_no_stamp(region):
    region.table[1, Stripe.SEQ] += 1
    assert stamp_of(region, 0, LAST) == CHANGING
    assert stamp_of(region, STRIPE_NBYTES - 1, STRIPE_NBYTES) != CHANGING
    region.table[2, Stripe.SEQ] += 1  # two odd numbers: their sum is even
    assert stamp_of(region, 0, LAST) == CHANGING


def test_stamps_of_parts_make_that_of_the_whole(memory, region):
    def parts():
        edges = range(0, LAST + 1, STRIPE_NBYTES)
        return [stamp_of(region, *part) for part in itertools.pairwise(edges)]

    for stripe in (2, 0, 2):
        change(memory, region, stripe)
        assert joined(parts()) == stamp_of(region, 0, LAST)
    assert joined(parts()[:1]) == parts()[0]
    region.table[1, Stripe.SEQ] += 1
    assert joined(parts()) == CHANGING


def test_where_loads_have_no_order_nothing_has_one(region, monkeypatch):
    monkeypatch.setattr(stamps, "ORDERS_LOADS", False)
    assert stamp_of(region, 0, LAST) == CHANGING
