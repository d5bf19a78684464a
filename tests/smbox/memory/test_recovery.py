from __future__ import annotations

import os

import numpy as np
import pytest

from smbox.errors import SegmentError
from smbox.memory import journal
from smbox.memory.commit import StripeBusy, recover_stripe
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Slot, SlotState, Stripe, slot_name
from smbox.memory.locks import LockFile
from smbox.memory.segment import unlink
from smbox.testing.dead_writer import GARBAGE, leave_open
from smbox.testing.forks import end, in_child
from smbox.testing.regions import commit

COMMITTED = SlotState.COMMITTED
ONES = np.ones(2, np.float32).view(np.uint8)


@pytest.fixture
def region(make):
    return make(np.arange(2, dtype=np.float32))


def add_one(memory, region) -> None:
    commit(memory.writer, (region,), KernelCode.SUM, 0, 8, ONES, 1.0)


def is_garbage(region) -> bool:
    return bool((region.data == GARBAGE).all())


@pytest.mark.parametrize("saved", [0, 4, 8])
def test_the_next_writer_undoes_what_was_armed(memory, region, saved):
    leave_open(region, first=0, limit=8, saved=saved)
    add_one(memory, region)
    assert region.array().tolist() == [1, 2]
    assert region.version() == 1
    assert memory.sweep_slots() == 1


def test_the_next_writer_closes_what_was_committed(memory, make):
    region = make(np.zeros(8, np.uint8))
    leave_open(region, first=0, limit=8, state=COMMITTED)
    one = np.ones(8, np.uint8)
    commit(memory.writer, (region,), KernelCode.SUM, 0, 8, one, 1)
    assert (region.data == GARBAGE + 1).all()
    assert region.version() == 2
    memory.sweep_slots()


def test_an_undo_changes_the_sequence_word_and_not_the_version(memory, region):
    """A reader that copied during an undone commit finds a changed sequence word."""
    seen = set()
    for _ in range(3):
        seen.add(int(region.table[0, Stripe.SEQUENCE]))
        leave_open(region, first=0, limit=8)
        recover_stripe(region, 0, memory.writer.locks)
    assert len(seen) == 3
    assert region.version() == 0
    assert memory.sweep_slots() == 3


def test_the_count_of_undone_commits_carries_nothing_into_the_version(memory, region):
    region.table[0, Stripe.SEQUENCE] = 5 << Stripe.COMMITS_SHIFT | 0xFFFE
    leave_open(region, first=0, limit=8)
    recover_stripe(region, 0, memory.writer.locks)
    assert region.table[0, Stripe.SEQUENCE] == 5 << Stripe.COMMITS_SHIFT
    memory.sweep_slots()


@pytest.mark.parametrize("state", [SlotState.ARMED, COMMITTED])
def test_each_stripe_is_recovered_alone(memory, make, state):
    """Rule 1: a process that finds an open stripe recovers only this one, from its extent."""
    regions = [make(np.full(4, i, np.int32), name) for i, name in enumerate("abc")]
    leave_open(*regions, first=0, limit=16, state=state)
    locks = LockFile(memory.name)
    recover_stripe(regions[1], 0, locks)
    assert is_garbage(regions[1]) == (state == COMMITTED)
    assert [int(region.table[0, 0]) & Stripe.OPEN for region in regions] == [1, 0, 1]
    recover_stripe(regions[1], 0, locks)  # a second recoverer: nothing to do
    assert regions[1].version() == (state == COMMITTED)
    memory.free(regions[0])  # a sibling that goes
    assert memory.sweep_slots() == 1
    assert is_garbage(regions[2]) == (state == COMMITTED)
    locks.close()


def test_a_held_stripe_is_not_recovered(memory, region):
    leave_open(region, first=0, limit=8)
    locks = LockFile(memory.name)
    region.try_lock(0, locks)
    with pytest.raises(StripeBusy):
        recover_stripe(region, 0, memory.writer.locks)
    assert memory.sweep_slots() == 0
    locks.close()
    assert memory.sweep_slots() == 1
    assert region.array().tolist() == [0, 1]


def test_a_slot_of_a_freed_region_is_just_removed(memory, region):
    leave_open(region, first=0, limit=8)
    memory.free(region)
    assert memory.sweep_slots() == 1


def test_a_later_commit_of_others_is_not_undone(memory, region):
    leave_open(region, first=0, limit=8)
    add_one(memory, region)
    before = region.array().tolist()
    assert memory.sweep_slots() == 1
    assert region.array().tolist() == before


@pytest.mark.parametrize(
    ("nbytes", "word", "value"),
    [
        (8, Slot.MAGIC, 1),
        (8, Slot.ID, 2),
        (8, Slot.STATE, 0),
        (8, Slot.STRIPE, 9),
        (8, Slot.FIRST, 1),
        (8, Slot.PROGRESS, 9),
        (8, Slot.EXTENTS, 0),
        (8, Slot.REGION, 77),
        (2 * STRIPE_NBYTES, Slot.FIRST, STRIPE_NBYTES),
        (2 * STRIPE_NBYTES, Slot.PROGRESS, STRIPE_NBYTES + 1),
    ],
)
def test_a_journal_that_does_not_fit_is_not_believed(memory, make, nbytes, word, value):
    region = make(np.zeros(nbytes, np.uint8).view(np.float32))
    stripe = region.data[:STRIPE_NBYTES]
    slot_id = leave_open(region, first=0, limit=stripe.size)
    slot = journal.attach_slot(memory.name, slot_id)
    slot.words(0, Slot.WORDS)[word] = value
    with pytest.raises(SegmentError):
        add_one(memory, region)
    assert int(region.table[0, Stripe.SEQUENCE]) == Stripe.OPEN
    assert (stripe == GARBAGE).all()
    assert not region.data[STRIPE_NBYTES:].any()
    unlink(slot_name(memory.name, slot_id))


def test_a_dead_writers_slot_stays_as_it_is(memory, region):
    """Rule 1: the node's sweep removes the slot; until then a restart finds its number."""
    slot_id = leave_open(region, first=0, limit=8, state=COMMITTED, channel=(1, 1, 5))
    slot = journal.attach_slot(memory.name, slot_id)
    before = slot.bytes.tobytes()
    recover_stripe(region, 0, memory.writer.locks)
    assert slot.bytes.tobytes() == before
    memory.sweep_slots()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_restart_takes_the_number_of_a_committed_slot(memory, region, restart, is_closed):
    row = memory.channels.claim(b"5" * 16, 0)
    channel = (row.index + 1, row.serial, 9)
    leave_open(region, first=0, limit=8, state=COMMITTED, channel=channel)
    if is_closed:  # a local client recovers: it closes the stripe and touches no channel
        recover_stripe(region, 0, memory.writer.locks)
        assert row.applied == 0
    again = restart()
    assert again.channels.find(b"5" * 16, 0).applied == 9
    assert journal.slot_ids(again.name) == [again.writer.slot_id]


def test_a_restart_takes_no_number_of_an_armed_slot_nor_of_another_serial(
    memory, region, make, restart
):
    row, other = memory.channels.claim(b"5" * 16, 0), make(np.zeros(4, np.uint8), "other")
    leave_open(region, first=0, limit=8, channel=(row.index + 1, row.serial, 9))
    before = (row.index + 1, row.serial - 1, 8)  # the row's use before this one
    leave_open(other, first=0, limit=4, state=COMMITTED, channel=before)
    again = restart()
    assert again.channels.find(b"5" * 16, 0).applied == 0


def test_a_killed_holder_frees_its_stripe(memory, region):
    held = []

    def lock():
        held.append(locks := LockFile(memory.name))
        assert region.try_lock(0, locks)

    child = in_child(lock)
    with pytest.raises(StripeBusy):
        add_one(memory, region)
    end(child)
    add_one(memory, region)
    assert region.version() == 1


def test_a_writer_that_lives_is_not_swept(memory):
    writer = Writer.create(memory.name)
    assert memory.sweep_slots() == 0
    writer.close()


def test_the_holder_is_named(memory, make):
    region = make(np.zeros(4, np.float32), name="weights")
    busy = StripeBusy(region, 0)
    assert "weights" in str(busy)
    assert busy.facts()["holder_pid"] == 0
    region.table[0, Stripe.WRITER] = memory.writer.slot_id
    assert busy.facts()["holder_pid"] == 0  # it wrote last
    assert region.try_lock(0, memory.writer.locks)
    assert busy.facts()["holder_pid"] == os.getpid()


def test_nobody_is_named_where_the_slot_is_gone(memory, make, monkeypatch):
    region = make(np.zeros(4, np.float32))
    region.table[0] = [Stripe.OPEN, memory.writer.slot_id, memory.writer.slot_id, 0, 0, 0, 0, 0]
    monkeypatch.setattr(region, "node", "gone")
    assert StripeBusy(region, 0).facts()["holder_pid"] == 0
