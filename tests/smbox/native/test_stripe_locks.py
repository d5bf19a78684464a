"""Locks of stripes, as the library's commit takes and leaves them."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.dtypes import by_name
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Stripe
from smbox.memory.orders import Result, address_of
from smbox.native import library

OTHER = 9


def add_ones(native, region) -> int:
    operand = by_name("uint8").code
    return native.commit(KernelCode.SUM, [region], 4, np.ones(4, np.uint8), operand=operand)


def test_a_stripe_that_another_holds_is_busy_and_stays_as_it_is(native):
    region, table = native.region(data := np.zeros(4, np.uint8))
    table[0, Stripe.HOLDER] = OTHER
    assert add_ones(native, region) == Result.BUSY
    assert not data.any()
    assert table[0].tolist() == [0, 0, OTHER, 0, 0, 0, 0, 0]


def test_a_commit_leaves_no_lock(native):
    region, table = native.region(data := np.zeros(4, np.uint8))
    assert add_ones(native, region) == Result.DONE
    assert data.tolist() == [1] * 4
    assert table[0, Stripe.HOLDER] == 0


def test_an_open_stripe_is_told_and_unlocked(native):
    region, table = native.region(data := np.zeros(4, np.uint8))
    table[0, Stripe.SEQUENCE] = Stripe.OPEN
    assert add_ones(native, region) == Result.OPEN
    assert not data.any()
    assert table[0, Stripe.HOLDER] == 0


def test_who_has_no_id_can_lock_nothing(native):
    """As a forked child that returns into a call of its parent."""
    without_id = type(native)(holder=0)
    region, table = without_id.region(data := np.zeros(4, np.uint8))
    assert add_ones(without_id, region) == Result.NOT_OWN
    assert not data.any()
    assert not table.any()


@pytest.mark.parametrize(
    ("found", "own", "from_", "result", "then"),
    [
        (0, 7, 0, Result.DONE, 7),  # lock
        (5, 7, 5, Result.DONE, 7),  # take over
        (9, 7, 5, Result.BUSY, 9),  # another one has taken it over
        (9, 7, 0, Result.BUSY, 9),
        (0, 0, 0, Result.NOT_OWN, 0),
        (5, 0, 5, Result.NOT_OWN, 5),
    ],
)
def test_a_lock_goes_over_from_its_holder_alone(found, own, from_, result, then):
    row, holder = np.zeros(Stripe.WORDS, np.uint64), np.array([own], np.uint64)
    row[Stripe.HOLDER] = found
    take = library.load().short.smbox_take
    assert take(address_of(row), address_of(holder), from_) == result
    assert row[Stripe.HOLDER] == then


@pytest.mark.parametrize(("found", "own", "then"), [(7, 7, 0), (9, 7, 9), (7, 0, 7), (0, 0, 0)])
def test_only_its_holder_leaves_a_lock(found, own, then):
    row, holder = np.zeros(Stripe.WORDS, np.uint64), np.array([own], np.uint64)
    row[Stripe.HOLDER] = found
    library.load().short.smbox_leave(address_of(row), address_of(holder))
    assert row[Stripe.HOLDER] == then
