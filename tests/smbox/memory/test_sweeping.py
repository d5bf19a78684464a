from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import SegmentError
from smbox.memory.change import Change
from smbox.memory.commit import _arm
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Slot, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import Piece
from smbox.memory.segment import Segment
from smbox.memory.sweeping import recover_slot


@pytest.fixture
def dead(memory):
    writer = Writer.create(memory.name)
    yield writer
    writer.abandon()


def sweep(memory, writer) -> bool:
    return recover_slot(memory.name, writer.slot_id, memory.superblock.locks)


def test_a_slot_at_rest_is_removed(memory, dead):
    assert sweep(memory, dead)


def test_an_armed_slot_waits_for_a_held_stripe(memory, make, dead):
    region = make(np.arange(2, dtype=np.float32))
    _arm(dead, region, Piece(0, 0, 8), Change(KernelCode.SUM, np.ones(2, np.float32)), None)
    region.table[0, Stripe.WRITER] = dead.slot_id
    region.table[0, Stripe.SEQ] = 1
    other = LockFile(memory.name)
    other.try_lock(region.lock_byte(0))
    assert not sweep(memory, dead)
    other.close()
    assert sweep(memory, dead)
    assert region.table[0, Stripe.SEQ] == 2
    assert dead.words[Slot.PROGRESS] == 0


def test_a_slot_stays_while_its_region_cannot_be_mapped(memory, make, dead, monkeypatch):
    region = make(np.arange(2, dtype=np.float32))
    _arm(dead, region, Piece(0, 0, 8), Change(KernelCode.SUM, np.ones(2, np.float32)), None)
    region.table[0, Stripe.WRITER] = dead.slot_id
    region.table[0, Stripe.SEQ] = 1
    attach = Segment.attach

    def full(name):
        if ".region." in name:
            raise SegmentError("too many open files")
        return attach(name)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "attach", full)
        with pytest.raises(SegmentError, match="too many"):
            sweep(memory, dead)
    assert sweep(memory, dead)
    assert region.table[0, Stripe.SEQ] == 2
