"""Lock files that are lent, and what a request holds with them."""

from __future__ import annotations

import numpy as np
import pytest

from memnode.holding import IDLE_MAX, Holding, LockFiles
from smbox.memory.busy import StripeBusy
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile


@pytest.fixture
def files(bench):
    made = LockFiles(bench.name)
    yield made
    made.close()


@pytest.fixture
def region(bench):
    address = bench.peer().create("r", (3 * STRIPE_NBYTES,), "uint8").body.address
    return bench.memory.regions[address]


def test_a_holding_keeps_its_stripes_and_gives_all_back(files, region, bench):
    holding, other = Holding(files), LockFile(bench.name)
    assert other.try_lock(region.lock_byte(2))
    hold = holding.of(region, range(3))
    with pytest.raises(StripeBusy):
        hold.take()
    assert holding.of(region, range(3)) is hold
    assert bench.memory.writer.locks.is_held(region.lock_byte(1))
    holding.let_go()
    holding.let_go()
    assert not bench.memory.writer.locks.is_held(region.lock_byte(1))
    other.close()


def test_two_that_wait_do_not_pass_through_each_other(files, region):
    first, second = Holding(files), Holding(files)
    first.of(region, range(3)).take()
    with pytest.raises(StripeBusy):
        second.of(region, range(3)).take()
    first.let_go()
    second.of(region, range(3)).take()
    second.let_go()
    assert np.array_equal(region.table[:, 0], [0, 0, 0])


def test_few_idle_files_are_kept(files):
    lent = [files.take() for _ in range(IDLE_MAX + 2)]
    assert len(set(lent)) == len(lent)
    for locks in lent:
        files.give(locks)
    again = [files.take() for _ in range(IDLE_MAX + 1)]
    assert set(again[:IDLE_MAX]) < set(lent)
    assert again[-1] not in lent
    for locks in again:
        locks.close()
