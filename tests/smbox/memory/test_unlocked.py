from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RegionFreedError
from smbox.memory.change import Change
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Consistency, RegionHeader, RegionState
from smbox.memory.mapped import Piece
from smbox.memory.unlocked import change_unlocked

CHANGE = Change(KernelCode.SUM, np.ones(2, np.float32), 0.5)


def test_it_changes_counts_and_answers(make):
    region = make(np.arange(5, dtype=np.float32), consistency=Consistency.NONE)
    old = np.empty(8, np.uint8)
    change_unlocked(region, Piece(0, 4, 12), CHANGE, old)
    assert region.array().tolist() == [0, 1.5, 2.5, 3, 4]
    assert old.view(np.float32).tolist() == [1, 2]
    assert region.version() == 1


def test_a_freed_region_is_told(make):
    region = make(np.arange(5, dtype=np.float32), consistency=Consistency.NONE)
    region.header[RegionHeader.STATE] = RegionState.FREED
    with pytest.raises(RegionFreedError):
        change_unlocked(region, Piece(0, 4, 12), CHANGE)
    assert region.array()[1] == 1
