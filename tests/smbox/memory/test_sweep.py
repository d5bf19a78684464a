"""The node's sweep of dead writers' slots: free, locked, damaged, and with answers."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import SegmentError, SystemLimitError
from smbox.memory import journal
from smbox.memory.channels import Answers, rings_of
from smbox.memory.commit import sweep_slot
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import (
    STRIPE_NBYTES,
    Ring,
    Slot,
    SlotState,
    Stripe,
    name_of,
    ring_name,
    slot_name,
)
from smbox.memory.locks import LockFile
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import Segment, listing, unlink
from smbox.testing.dead_writer import GARBAGE, leave_open
from smbox.testing.regions import commit

COMMITTED = SlotState.COMMITTED


@pytest.fixture
def region(make):
    return make(np.arange(2, dtype=np.float32))


def sweep(memory, slot_id: int) -> bool:
    return sweep_slot(memory.name, slot_id, memory.superblock.locks, memory.channels)


def test_a_slot_at_rest_is_removed(memory):
    writer = Writer.create(memory.name)
    writer.locks.close()
    assert sweep(memory, writer.slot_id)


def test_what_a_killed_writer_had_of_its_slot_is_removed(memory, monkeypatch):
    prefix = name_of(memory.name, "building.")

    def kill(_segment, _name):
        memory.sweep_slots()
        assert len(listing(prefix)) == 1  # the writer still lives
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Segment, "rename", kill)
        patch.setattr(Segment, "unlink", lambda _: None)
        Writer.create(memory.name)
    building = memory.begin(RegionSpec("r", dtypes.by_name("float32"), (1,)))
    assert len(listing(prefix)) == 2
    memory.sweep_slots()
    assert len(listing(prefix)) == 1
    building.step()


def test_a_slot_stays_while_its_region_cannot_be_mapped(memory, make, monkeypatch):
    region = make(np.arange(2, dtype=np.float32))
    slot_id, attach = leave_open(region, first=0, limit=8), Segment.attach

    def full(name):
        if ".region." in name:
            raise SystemLimitError("too many open files")
        return attach(name)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "attach", full)
        with pytest.raises(SystemLimitError, match="too many"):
            sweep(memory, slot_id)
    assert sweep(memory, slot_id)
    assert not int(region.table[0, Stripe.SEQUENCE]) & Stripe.OPEN
    assert region.array().tolist() == [0, 1]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_ring_that_undoes_a_held_stripe_is_kept_until_it_has(memory, region, is_forgotten):
    """A stopped process may hold a stripe of a killed node's commit over several restarts."""
    row = memory.channels.claim(b"5" * 16, 0)
    answers = Answers(row)
    answers.block_for(8)
    ring = answers.ring
    slot_id = leave_open(region, first=0, limit=8, channel=(row.index + 1, row.serial, 1))
    slot = journal.attach_slot(memory.name, slot_id)
    kept = Segment.attach(ring_name(memory.name, ring))
    kept.bytes[Ring.OLD_OFFSET : Ring.OLD_OFFSET + 8] = np.array([6, 7], "f4").view("u1")
    words = slot.words(0, Slot.WORDS)
    words[Slot.RING], words[Slot.RING_OFFSET] = ring, Ring.OLD_OFFSET
    holder = LockFile(memory.name)
    assert region.try_lock(0, holder)
    assert not sweep(memory, slot_id)
    if is_forgotten:
        memory.channels.release(row)
    else:
        answers.block_for(8)
        assert answers.ring != ring
        answers.block_for(STRIPE_NBYTES)
    assert ring in rings_of(memory.name, row.serial)
    holder.close()
    assert sweep(memory, slot_id)
    assert region.array().tolist() == [6, 7]
    assert rings_of(memory.name, row.serial) == ([] if is_forgotten else [answers.ring])


@pytest.mark.parametrize(
    ("word", "value"), [(Slot.EXTENTS, 9), (Slot.STRIPE, 1 << 40), (Slot.CHANNEL, 1 << 20)]
)
def test_a_damaged_slot_stops_no_start(memory, region, restart, caplog, word, value):
    slot_id = leave_open(region, first=0, limit=8, state=COMMITTED, channel=(1, 1, 5))
    slot = journal.attach_slot(memory.name, slot_id)
    slot.words(0, Slot.WORDS)[word] = value
    again = restart()
    assert "damaged" in caplog.text
    assert slot_id in journal.slot_ids(again.name)
    unlink(slot_name(again.name, slot_id))


def test_a_ring_that_is_cut_short_undoes_nothing(memory, region):
    row = memory.channels.claim(b"5" * 16, 0)
    answers = Answers(row)
    answers.block_for(8)
    slot_id = leave_open(region, first=0, limit=8, channel=(row.index + 1, row.serial, 1))
    slot = journal.attach_slot(memory.name, slot_id)
    words = slot.words(0, Slot.WORDS)
    words[Slot.RING], words[Slot.RING_OFFSET] = answers.ring, 1 << 40
    with pytest.raises(SegmentError, match="ring"):
        commit(memory.writer, (region,), KernelCode.SUM, 0, 8, np.ones(8, np.uint8), 1.0)
    assert (region.data == GARBAGE).all()
    unlink(slot_name(memory.name, slot_id))


def test_what_is_called_like_a_slot_and_is_none_is_passed_over(memory):
    other = Segment.create(name_of(memory.name, "slot.zzz"), 4096)
    assert journal.slot_ids(memory.name) == [memory.writer.slot_id]
    other.unlink()


def test_a_held_sibling_keeps_no_other_extent_open(memory, make):
    one, two = make(np.zeros(2, np.float32), "one"), make(np.zeros(2, np.float32), "two")
    slot_id = leave_open(one, two, first=0, limit=8)
    holder = LockFile(memory.name)
    assert one.try_lock(0, holder)
    assert not sweep(memory, slot_id)
    assert not int(two.table[0, Stripe.SEQUENCE]) & Stripe.OPEN
    holder.close()
    assert sweep(memory, slot_id)
