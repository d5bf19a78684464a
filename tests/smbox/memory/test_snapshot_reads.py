from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import ConfigError, RegionFreedError
from smbox.memory.commit import StripeBusy, recover_stripe
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import CHANGING, RangeLock, stamp_of
from smbox.testing.dead_writer import leave_open
from smbox.testing.regions import commit

LAST = 2 * STRIPE_NBYTES + 1


@pytest.fixture
def region(make):
    return make(np.zeros(LAST, np.uint8))


@pytest.fixture
def locks(memory):
    opened = LockFile(memory.name)
    yield opened
    opened.close()


def held(region) -> list[bool]:
    return region.table[:3, Stripe.HOLDER].astype(bool).tolist()


def test_it_keeps_what_it_has_and_goes_on(region, other, locks):
    range_lock = RangeLock(region, locks, 0, LAST)
    region.try_lock(1, other)
    with pytest.raises(StripeBusy) as busy:
        range_lock.acquire()
    assert busy.value.stripe == 1
    assert held(region) == [True, True, False]
    region.unlock(1, other)
    range_lock.acquire()
    assert held(region) == [True, True, True]
    range_lock.release()
    assert held(region) == [False, False, False]


def test_a_release_that_is_interrupted_begins_anew(region, locks, monkeypatch):
    """The next snapshot skipped the stripes that had been unlocked: it could be torn."""
    range_lock, unlock = RangeLock(region, locks, 0, LAST), MappedRegion.unlock

    def interrupted(region: MappedRegion, stripe: int, locks: LockFile) -> None:
        unlock(region, stripe, locks)
        if stripe == 1:
            raise KeyboardInterrupt

    range_lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(MappedRegion, "unlock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            range_lock.release()
    range_lock.acquire()
    assert held(region) == [True, True, True]
    range_lock.release()


def test_part_of_a_region_can_be_held(region, locks):
    range_lock = RangeLock(region, locks, STRIPE_NBYTES, 2 * STRIPE_NBYTES)
    range_lock.acquire()
    assert held(region) == [False, True, False]
    range_lock.release()


def test_a_freed_region_has_no_snapshot(region, locks):
    region.state = RegionState.FREED
    range_lock = RangeLock(region, locks, 0, LAST)
    with pytest.raises(RegionFreedError):
        range_lock.acquire()
    range_lock.release()
    assert held(region) == [False, False, False]


def test_a_copy_is_made_when_all_stripes_of_its_range_are_held(region, other, locks):
    region.array()[:] = 7
    first, limit = STRIPE_NBYTES - 1, STRIPE_NBYTES + 2
    range_lock, out = RangeLock(region, locks, first, limit), np.zeros(3, np.uint8)
    region.try_lock(1, other)
    with pytest.raises(StripeBusy):
        range_lock.copy_to(out)
    assert out.tolist() == [0, 0, 0]
    assert held(region) == [True, True, False]
    region.unlock(1, other)
    range_lock.copy_to(out)
    assert out.tolist() == [7, 7, 7]
    assert held(region) == [False, False, False]


def test_what_a_dead_writer_left_open_is_undone_before_it_is_copied(memory, region, locks):
    leave_open(region, first=STRIPE_NBYTES, limit=STRIPE_NBYTES + 8, saved=4)
    out = np.ones(LAST, np.uint8)
    RangeLock(region, locks, 0, LAST).copy_to(out)
    assert not out.any()
    assert memory.sweep_slots() == 1


def test_a_region_without_locks_has_no_snapshots(make, locks):
    region = make(np.zeros(4, np.uint8), consistency=Consistency.NONE)
    with pytest.raises(ConfigError, match="snapshots"):
        RangeLock(region, locks, 0, 4)


def change(memory, region, stripe):
    first, one = stripe * STRIPE_NBYTES, np.ones(1, np.uint8)
    commit(memory.writer, (region,), KernelCode.SUM, first, first + 1, one)


def test_every_commit_and_every_undo_in_the_range_changes_the_stamp(memory, region):
    seen = {stamp_of(region, 0, LAST)}
    for stripe in (0, 2, 2, 1):
        change(memory, region, stripe)
        seen.add(stamp_of(region, 0, LAST))
    leave_open(region, first=0, limit=8)
    recover_stripe(region, 0, memory.writer.locks)
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
