from __future__ import annotations

import sys

import numpy as np
import pytest

from smbox.errors import ConfigError, RegionFreedError
from smbox.memory import commit as commit_module, recovery
from smbox.memory.busy import StripeBusy
from smbox.memory.change import Change, Receipt
from smbox.memory.channels import RingFile
from smbox.memory.commit import commit, commits
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import RegionHeader, RegionState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import Piece

PIECE = Piece(0, 4, 12)
TWICE = Change(KernelCode.SUM, np.array([1, 2], np.float32), 2.0)


@pytest.fixture
def region(make):
    return make(np.arange(5, dtype=np.float32))


def test_a_change_answers_with_what_was_there(memory, region):
    old = commit(memory.writer, region, PIECE, TWICE)
    assert old.view(np.float32).tolist() == [1, 2]
    assert region.array().tolist() == [0, 3, 6, 3, 4]
    assert region.version() == commits(memory.writer) == 1
    assert region.table[0, Stripe.SEQ] == 2


def test_a_remote_change_leaves_its_number_and_answer(memory, region):
    row = memory.channels.claim(5, 0)
    ring = RingFile.open(memory.name, row.index)
    commit(memory.writer, region, PIECE, TWICE, Receipt(row, 1, ring))
    commit(memory.writer, region, PIECE, TWICE, Receipt(row, 2))
    assert row.applied == 2
    assert ring.answers(1).view(np.float32).tolist() == [1, 2]
    assert ring.answers(2) is None


def test_a_held_stripe_is_busy_and_stays(memory, region):
    other = LockFile(memory.name)
    other.try_lock(region.lock_byte(0))
    with pytest.raises(StripeBusy):
        commit(memory.writer, region, PIECE, TWICE)
    other.close()
    assert region.version() == 0


def test_a_freed_region_is_told_and_its_stripe_unlocked(memory, region):
    region.header[RegionHeader.STATE] = RegionState.FREED
    with pytest.raises(RegionFreedError):
        commit(memory.writer, region, PIECE, TWICE)
    assert not memory.superblock.locks.is_held(region.lock_byte(0))


@pytest.mark.parametrize(
    "change",
    [
        Change(KernelCode.SUM, np.ones(3, np.float32)),
        Change(KernelCode.SUM, np.ones(2, np.float32), float("nan")),
        Change(KernelCode.ARRIVE, np.ones(1, np.float32)),
    ],
)
def test_an_impossible_change_rolls_back(memory, region, change):
    with pytest.raises(ConfigError):
        commit(memory.writer, region, PIECE, change)
    assert region.array().tolist() == [0, 1, 2, 3, 4]
    assert region.version() == 0
    commit(memory.writer, region, PIECE, TWICE)
    assert region.version() == 1


def interrupt_at(line: int, run) -> bool:
    """Run with a KeyboardInterrupt before the ``line``-th line of the procedure."""
    files = {commit_module.__file__, recovery.__file__}
    count = 0

    def trace(frame, event, _arg):
        nonlocal count
        if frame.f_code.co_filename not in files or frame.f_code.co_name == "commit":
            return trace
        if event == "line":
            count += 1
            if count == line:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_an_interrupt_at_any_line_leaves_all_or_nothing(memory, region):
    writer = Writer.create(memory.name)
    expected, line = 0, 1
    outcomes = set()
    while interrupt_at(line, lambda: commit(writer, region, PIECE, TWICE)):
        happened = commits(writer) > expected
        expected += happened
        outcomes.add(happened)
        assert region.array()[1] == 1 + 2 * expected
        assert region.version() == expected
        assert region.table[0, Stripe.SEQ] % 2 == 0
        assert not recovery.is_open(writer.words)
        assert not memory.superblock.locks.is_held(region.lock_byte(0))
        line += 1
    assert outcomes == {True, False}
    assert line > 30
    writer.close()
