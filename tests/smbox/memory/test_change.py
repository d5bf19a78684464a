from __future__ import annotations

import numpy as np

from smbox.memory.change import Change, Receipt
from smbox.memory.kernels import KernelCode


def test_a_change_is_unscaled_and_a_receipt_answers_nothing_by_default():
    assert Change(KernelCode.SUM, np.ones(1)).scale == 1
    assert Receipt(row=None, number=3).ring is None
