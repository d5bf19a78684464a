from __future__ import annotations

import os

import numpy as np

from smbox.memory.busy import StripeBusy
from smbox.memory.layout import Stripe


def test_the_holder_is_named(memory, make):
    region = make(np.zeros(4, np.float32), name="weights")
    busy = StripeBusy(region, 0)
    assert "weights" in str(busy)
    assert busy.holder_pid() == 0
    region.table[0, Stripe.WRITER] = memory.writer.slot_id
    assert busy.holder_pid() == os.getpid()
