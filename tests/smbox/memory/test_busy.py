from __future__ import annotations

import os

import numpy as np

from smbox.memory.busy import StripeBusy
from smbox.memory.journal import Writer
from smbox.memory.layout import Stripe


def test_the_holder_is_named(memory, make):
    region = make(np.zeros(4, np.float32), name="weights")
    busy = StripeBusy(region, 0)
    assert "weights" in str(busy)
    assert busy.holder_pid() == 0
    region.table[0, Stripe.WRITER] = memory.writer.slot_id
    assert busy.holder_pid() == 0  # it wrote last
    region.table[0, Stripe.SEQUENCE] = 1
    assert busy.holder_pid() == os.getpid()


def test_a_holder_that_died_is_not_named(memory, make):
    region = make(np.zeros(4, np.float32))
    busy, writer = StripeBusy(region, 0), Writer.create(memory.name)
    region.table[0, Stripe.WRITER] = writer.slot_id
    region.table[0, Stripe.SEQUENCE] = 1
    assert busy.holder_pid() == os.getpid()
    writer.locks.close()  # its lock goes, as with its process
    assert busy.holder_pid() == 0
    writer.close()


def test_nobody_is_named_where_the_locks_are_gone(memory, make, monkeypatch):
    region = make(np.zeros(4, np.float32))
    region.table[0] = [Stripe.OPEN, memory.writer.slot_id, 0, 0, 0, 0, 0, 0]
    monkeypatch.setattr(region, "node", "gone")
    assert StripeBusy(region, 0).holder_pid() == 0
