from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import SegmentError
from smbox.memory.journal import Writer
from smbox.memory.layout import Stripe
from smbox.memory.segment import Segment
from smbox.memory.sweeping import recover_slot
from smbox.testing.dead_writer import leave_open


def sweep(memory, slot_id: int) -> bool:
    return recover_slot(memory.name, slot_id, memory.superblock.locks)


def test_a_slot_at_rest_is_removed(memory):
    writer = Writer.create(memory.name)
    writer.abandon()
    assert sweep(memory, writer.slot_id)


def test_a_slot_stays_while_its_region_cannot_be_mapped(memory, make, monkeypatch):
    region = make(np.arange(2, dtype=np.float32))
    slot_id, attach = leave_open(region, first=0, limit=8), Segment.attach

    def full(name):
        if ".region." in name:
            raise SegmentError("too many open files")
        return attach(name)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "attach", full)
        with pytest.raises(SegmentError, match="too many"):
            sweep(memory, slot_id)
    assert sweep(memory, slot_id)
    assert not int(region.table[0, Stripe.SEQUENCE]) & Stripe.OPEN
    assert region.array().tolist() == [0, 1]
