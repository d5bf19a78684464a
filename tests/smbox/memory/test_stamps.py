from __future__ import annotations

import numpy as np
import pytest

from smbox.memory import recovery
from smbox.memory.commit import commit
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.stamps import CHANGING, stamp_of
from smbox.testing.dead_writer import leave_open

LAST = 3 * STRIPE_NBYTES


@pytest.fixture
def region(make):
    return make(np.zeros(LAST, np.uint8))


def change(memory, region, stripe):
    first, one = stripe * STRIPE_NBYTES, np.ones(1, np.uint8)
    commit(memory.writer, (region,), KernelCode.SUM, first, first + 1, one)


def test_every_commit_and_every_undo_in_the_range_changes_the_stamp(memory, region):
    seen = {stamp_of(region, 0, LAST)}
    for stripe in (0, 2, 2, 1):
        change(memory, region, stripe)
        seen.add(stamp_of(region, 0, LAST))
    leave_open(region, first=0, limit=8)
    recovery.recover_stripe(region, 0, memory.writer.locks)
    seen.add(stamp_of(region, 0, LAST))
    assert len(seen) == 6
    assert CHANGING not in seen
    memory.sweep_slots()


def test_a_commit_elsewhere_does_not(memory, region):
    middle = STRIPE_NBYTES, 2 * STRIPE_NBYTES
    before = stamp_of(region, *middle)
    for stripe in (0, 2):
        change(memory, region, stripe)
    assert stamp_of(region, *middle) == before
    change(memory, region, 1)
    assert stamp_of(region, middle[0], middle[0] + 1) != before


def test_what_is_being_changed_has_no_stamp(region):
    region.table[1, Stripe.SEQUENCE] |= np.uint64(Stripe.OPEN)
    assert stamp_of(region, 0, LAST) == CHANGING
    assert stamp_of(region, STRIPE_NBYTES - 1, STRIPE_NBYTES) != CHANGING
    region.table[2, Stripe.SEQUENCE] |= np.uint64(Stripe.OPEN)
    assert stamp_of(region, 0, LAST) == CHANGING


def test_a_count_that_wraps_changes_the_stamp_though_another_grows(region):
    region.table[0, Stripe.SEQUENCE] = 0xFFFE
    before = stamp_of(region, 0, LAST)
    region.table[0, Stripe.SEQUENCE] = 0
    region.table[1, Stripe.SEQUENCE] += 0xFFFE
    assert stamp_of(region, 0, LAST) != before
