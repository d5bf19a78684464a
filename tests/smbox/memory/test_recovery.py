from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from smbox.errors import SegmentError
from smbox.memory import recovery
from smbox.memory.change import Change
from smbox.memory.commit import _arm, commit
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Slot, SlotState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import Piece

PIECE = Piece(0, 0, 8)
ONE = Change(KernelCode.SUM, np.ones(2, np.float32))


@pytest.fixture
def region(make):
    return make(np.arange(2, dtype=np.float32))


@pytest.fixture
def dead(memory, region):
    """A writer that died in the middle of its commit: half saved, half changed."""
    writer = Writer.create(memory.name)
    old = _arm(writer, region, PIECE, ONE, None)
    region.table[0, Stripe.WRITER] = writer.slot_id
    region.table[0, Stripe.SEQ] += 1
    old[:4] = region.data[:4]
    writer.words[Slot.PROGRESS] = 4
    region.array()[0] = 77
    writer.locks.close()
    yield writer
    writer.abandon()


def test_the_next_writer_undoes_what_was_armed(memory, region, dead):
    commit(memory.writer, region, PIECE, ONE)
    assert region.array().tolist() == [1, 2]
    assert region.version() == 1
    assert not recovery.is_open(dead.words)


def test_the_next_writer_finishes_what_was_committed(memory, region, dead):
    dead.words[Slot.STATE] += SlotState.COMMITTED - SlotState.ARMED
    commit(memory.writer, region, PIECE, ONE)
    assert region.array().tolist() == [78, 2]
    assert region.version() == 2


def test_a_swept_slot_is_undone_and_gone(memory, region, dead):
    assert memory.sweep_slots() == 1
    assert region.array().tolist() == [0, 1]
    assert region.table[0, Stripe.SEQ] == 2


def test_a_slot_whose_stripe_is_held_waits(memory, region, dead):
    other = LockFile(memory.name)
    other.try_lock(region.lock_byte(0))
    assert memory.sweep_slots() == 0
    other.close()
    assert memory.sweep_slots() == 1


def test_a_slot_of_a_freed_region_is_just_removed(memory, region, dead):
    memory.free(region)
    assert memory.sweep_slots() == 1


def test_a_later_commit_of_others_is_not_undone(memory, region, dead):
    region.table[0, Stripe.SEQ] += 1
    commit(memory.writer, region, PIECE, ONE)
    before = region.array().tolist()
    assert memory.sweep_slots() == 1
    assert region.array().tolist() == before


def test_a_journal_of_another_stripe_is_not_believed(memory, region, dead):
    dead.words[Slot.STRIPE] = 9
    with pytest.raises(SegmentError, match="damaged"):
        commit(memory.writer, region, PIECE, ONE)
    assert region.table[0, Stripe.SEQ] == 1
    dead.words[Slot.STRIPE] = 0


def test_a_killed_holder_frees_its_stripe(memory, region):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        LockFile(memory.name).try_lock(region.lock_byte(0)) or os._exit(1)
        held = LockFile(memory.name)
        held.try_lock(region.lock_byte(0))
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    commit(memory.writer, region, PIECE, ONE)
    assert region.version() == 1
    os.close(reader)
    os.close(writer)
