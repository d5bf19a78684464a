"""Writers that are lent, and what a request holds with them."""

from __future__ import annotations

import numpy as np
import pytest

from memnode.holding import IDLE_MAX, Holding, Writers
from smbox.memory.busy import StripeBusy
from smbox.memory.layout import STRIPE_NBYTES, slot_name
from smbox.memory.locks import LockFile
from smbox.memory.segment import listing


@pytest.fixture
def writers(bench):
    made = Writers(bench.name)
    yield made
    made.close()


@pytest.fixture
def region(bench):
    address = bench.peer().create("r", (3 * STRIPE_NBYTES,), "uint8").body.address
    return bench.memory.regions[address]


def slots(bench):
    return len(listing(slot_name(bench.name, 0)[:-16]))


def test_a_holding_keeps_its_stripes_and_gives_all_back(bench, writers, region):
    holding, other = Holding(writers), LockFile(bench.name)
    assert other.try_lock(region.lock_byte(2))
    _, hold = holding.of(region, range(3))
    with pytest.raises(StripeBusy):
        hold.take()
    assert holding.of(region, range(3))[1] is hold
    assert bench.memory.writer.locks.is_held(region.lock_byte(1))
    holding.let_go()
    holding.let_go()
    assert not bench.memory.writer.locks.is_held(region.lock_byte(1))
    other.close()


def test_two_that_wait_do_not_pass_through_each_other(bench, writers, region):
    first, second = Holding(writers), Holding(writers)
    first.of(region, range(3))[1].take()
    with pytest.raises(StripeBusy):
        second.of(region, range(3))[1].take()
    first.let_go()
    second.of(region, range(3))[1].take()
    second.let_go()
    assert np.array_equal(region.table[:, 0], [0, 0, 0])


def test_few_idle_writers_are_kept(bench, writers):
    before = slots(bench)
    lent = [writers.take() for _ in range(IDLE_MAX + 2)]
    assert slots(bench) == before + IDLE_MAX + 2
    for writer in lent:
        writers.give(writer)
    assert slots(bench) == before + IDLE_MAX
    again = writers.take()
    assert again in lent
    writers.give(again)
