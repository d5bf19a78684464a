"""Locks of stripes: their holders, and what becomes of them."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from smbox.errors import PeerLostError
from smbox.memory.commit import recover_held
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.reading import RangeLock, Reader
from smbox.testing.dead_writer import leave_open
from smbox.testing.forks import end, in_child
from smbox.testing.regions import commit


def test_a_stripe_has_one_holder(pair, make):
    one, two = pair
    region = make(np.zeros(4, np.int64))
    assert region.try_lock(0, one)
    assert region.try_lock(0, one)  # it has it
    assert not region.try_lock(0, two)
    region.unlock(0, two)
    assert region.table[0, Stripe.HOLDER] == one.id
    region.unlock(0, one)
    assert region.try_lock(0, two)


def dead_holder(memory, region) -> int:
    """Lock all stripes of a region in a process that is killed; return its id."""
    kept = []

    def lock():
        kept.append(locks := LockFile(memory.name))
        assert all(region.try_lock(stripe, locks) for stripe in range(region.stripe_count))

    end(in_child(lock))
    return int(region.table[0, Stripe.HOLDER])


def test_the_locks_of_a_killed_process_are_taken_over(memory, make):
    """By a commit, and by a snapshot; the dead process had no journal slot."""
    region = make(np.zeros(2 * STRIPE_NBYTES, np.uint8))
    dead = dead_holder(memory, region)
    assert dead
    assert not memory.writer.locks.is_alive(dead)
    ones = np.ones(region.nbytes, np.uint8)
    commit(memory.writer, (region,), KernelCode.SUM, 0, region.nbytes, ones)
    assert not region.table[:, Stripe.HOLDER].any()
    assert dead_holder(memory, region) != dead
    with closing(LockFile(memory.name)) as locks:
        RangeLock(region, locks, 0, region.nbytes).copy_to(out := np.zeros_like(ones))
    assert out.all()
    assert not region.table[:, Stripe.HOLDER].any()


def test_a_read_takes_the_lock_of_a_killed_process_over_if_the_stripe_is_open(memory, make):
    region = make(np.arange(4, dtype=np.uint8))
    leave_open(region, first=0, limit=4)
    with closing(LockFile(memory.name)) as locks:
        Reader(locks).read(region, 0, 4, out := np.zeros(4, np.uint8))
    assert out.tolist() == [0, 1, 2, 3]
    assert region.table[0, [Stripe.SEQUENCE, Stripe.HOLDER]].tolist() == [2, 0]
    memory.sweep_slots()


def test_two_who_find_a_dead_holder_take_its_lock_over_once(pair, memory, make, monkeypatch):
    one, two = pair
    region = make(np.zeros(4, np.int64))
    dead_holder(memory, region)
    is_alive = LockFile.is_alive

    def late(locks: LockFile, holder: int) -> bool:
        monkeypatch.undo()
        assert region.try_lock(0, two)  # meanwhile
        return is_alive(one, holder)

    monkeypatch.setattr(LockFile, "is_alive", late)
    assert not region.try_lock(0, one)
    assert region.table[0, Stripe.HOLDER] == two.id


def test_a_word_that_is_no_id_counts_as_a_dead_holder(memory, make):
    """Damaged memory must not end a node."""
    region = make(np.zeros(4, np.uint8))
    leave_open(region, first=0, limit=4)
    region.table[0, Stripe.HOLDER] = 2**64 - 1
    assert memory.sweep_slots() == 1
    assert region.table[0, [Stripe.SEQUENCE, Stripe.HOLDER]].tolist() == [2, 0]


def test_a_child_of_a_fork_inside_a_call_neither_locks_unlocks_nor_recovers(memory, make):
    """As from a signal handler that forked: the parent goes on with its lock meanwhile."""
    region = make(np.zeros(4, np.uint8))
    leave_open(region, first=0, limit=4)
    locks = memory.writer.locks
    assert region.try_lock(0, locks)

    def go_on():
        region.unlock(0, locks)
        for call in (region.try_lock, lambda *place: recover_held(region, *place)):
            with pytest.raises(PeerLostError, match="parent"):
                call(0, locks)

    end(in_child(go_on))
    assert region.table[0, [Stripe.SEQUENCE, Stripe.HOLDER]].tolist() == [1, locks.id]
    recover_held(region, 0, locks)
    region.unlock(0, locks)
    memory.sweep_slots()
