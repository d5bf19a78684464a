from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import LayoutMismatchError, RegionFreedError
from smbox.memory.busy import StripeBusy
from smbox.memory.change import Receipt
from smbox.memory.layout import Consistency, RegionHeader, RegionState, Sibling, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import Piece
from smbox.memory.optimizers import OptimizerCode
from smbox.memory.update import Update, commit_update

PIECE = Piece(0, 4, 12)
STEP = Update(OptimizerCode.MOMENTUM, np.array([1, 2], np.float32), (0.5, 0.5))


@pytest.fixture
def region(make):
    return make(np.arange(4, dtype=np.float32))


@pytest.fixture
def momentum(make):
    return make(np.full(4, 2, np.float32), name="momentum")


def test_parameters_and_state_move_together(memory, region, momentum):
    row = memory.channels.claim(3, 0)
    commit_update(memory.writer, region, [momentum], PIECE, STEP, Receipt(row, 9))
    assert momentum.array().tolist() == [2, 2, 3, 2]
    assert region.array().tolist() == [0, 0, 0.5, 3]
    assert (region.version(), momentum.version(), row.applied) == (1, 1, 9)
    assert memory.writer.words[Sibling.COUNT] == 0
    for extent in (region, momentum):
        assert not memory.superblock.locks.is_held(extent.lock_byte(0))


def test_adam_counts_its_steps_by_its_state(memory, make, region):
    states = [make(np.zeros(4, np.float32), name=name) for name in ("mean", "squares")]
    step = Update(OptimizerCode.ADAM, np.ones(2, np.float32), (0.1, 0.9, 0.999, 0.0))
    for _ in range(3):
        commit_update(memory.writer, region, states, PIECE, step)
    np.testing.assert_allclose(region.array(), [0, 0.7, 1.7, 3], rtol=1e-6)
    assert states[1].version() == 3


def test_a_held_sibling_makes_it_come_again(memory, region, momentum):
    other = LockFile(memory.name)
    other.try_lock(momentum.lock_byte(0))
    with pytest.raises(StripeBusy):
        commit_update(memory.writer, region, [momentum], PIECE, STEP)
    assert not memory.superblock.locks.is_held(region.lock_byte(0))
    other.close()
    commit_update(memory.writer, region, [momentum], PIECE, STEP)
    assert region.version() == 1


def test_a_freed_sibling_is_told(memory, region, momentum):
    momentum.header[RegionHeader.STATE] = RegionState.FREED
    with pytest.raises(RegionFreedError):
        commit_update(memory.writer, region, [momentum], PIECE, STEP)
    assert region.version() == 0


def test_siblings_must_fit(memory, make, region, momentum):
    unlocked = make(np.zeros(4, np.float32), name="n", consistency=Consistency.NONE)
    shorter = make(np.zeros(3, np.float32), name="s")
    for siblings in ([], [unlocked], [shorter], [region], [momentum, momentum]):
        with pytest.raises(LayoutMismatchError, match="momentum"):
            commit_update(memory.writer, region, siblings, PIECE, STEP)
    assert region.table[0, Stripe.SEQ] == 0
