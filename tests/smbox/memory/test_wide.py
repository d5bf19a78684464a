from __future__ import annotations

import sys

import numpy as np
import pytest

from smbox.errors import RegionFreedError, SegmentError
from smbox.memory import accel, commit as commit_module, kernels, wide as wide_module
from smbox.memory.busy import StripeBusy
from smbox.memory.change import Receipt
from smbox.memory.hold import Hold
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import (
    STRIPE_NBYTES,
    Consistency,
    Intent,
    RegionHeader,
    RegionState,
    Stripe,
)
from smbox.memory.locks import LockFile
from smbox.memory.wide import (
    WideChange,
    commit_wide,
    finish_wide,
    is_under_way,
    read_held,
    read_wide,
)
from smbox.testing.crash_points import killed_at

COUNT = STRIPE_NBYTES // 4 * 2 + 5
BEGIN = np.linspace(0, 1, COUNT, dtype=np.float32)
SOURCE = np.linspace(1, 2, COUNT, dtype=np.float32)
DONE = BEGIN + np.float32(0.5) * SOURCE


@pytest.fixture
def region(make):
    return make(BEGIN, consistency=Consistency.REGION)


@pytest.fixture
def source(make):
    return make(np.concatenate([SOURCE, np.zeros_like(SOURCE)]), name="stage")


def change_of(source) -> WideChange:
    return WideChange(0, BEGIN.nbytes, KernelCode.SUM, 0.5, source, 0, BEGIN.nbytes)


def hold_of(region, locks) -> Hold:
    return Hold(region, locks, range(region.stripe_count))


def test_it_changes_all_and_keeps_the_old_bytes(memory, region, source):
    row = memory.channels.claim(1, 0)
    hold = hold_of(region, memory.writer.locks)
    commit_wide(memory.writer, region, hold, change_of(source), Receipt(row, 7))
    assert np.array_equal(region.array(), DONE)
    assert np.array_equal(source.array()[COUNT:], BEGIN)
    assert row.applied == 7
    assert region.header[RegionHeader.WIDE] == 0
    assert not memory.superblock.locks.is_held(region.lock_byte(0))


def test_a_held_stripe_makes_it_come_again(memory, region, source):
    other = LockFile(memory.name)
    other.try_lock(region.lock_byte(2))
    hold = hold_of(region, memory.writer.locks)
    with pytest.raises(StripeBusy):
        commit_wide(memory.writer, region, hold, change_of(source))
    assert np.array_equal(region.array(), BEGIN)
    other.close()
    commit_wide(memory.writer, region, hold, change_of(source))
    assert np.array_equal(region.array(), DONE)


def test_a_freed_region_is_told(memory, region, source):
    region.header[RegionHeader.STATE] = RegionState.FREED
    hold = hold_of(region, memory.writer.locks)
    with pytest.raises(RegionFreedError):
        commit_wide(memory.writer, region, hold, change_of(source))


def test_a_read_between_changes_is_whole_and_one_during_them_is_not(memory, region):
    out = np.empty(region.nbytes, np.uint8)
    assert read_wide(region, 0, region.nbytes, out)
    assert np.array_equal(out.view(np.float32), BEGIN)
    region.table[1, Stripe.SEQ] = 1
    assert not read_wide(region, 0, region.nbytes, out)
    region.table[1, Stripe.SEQ] = 2
    region.header[RegionHeader.WIDE] = 1
    assert not read_wide(region, 0, region.nbytes, out)


@pytest.mark.parametrize("whole", [int, float])
def test_scales_of_all_kinds_come_back(memory, make, whole):
    dtype = np.int64 if whole is int else np.float64
    region = make(np.zeros(3, dtype), consistency=Consistency.REGION)
    source = make(np.ones(3, dtype), name="s")
    scale = -(1 << 62) - 1 if whole is int else 1e-300
    hold = hold_of(region, memory.writer.locks)
    commit_wide(memory.writer, region, hold, WideChange(0, 24, KernelCode.SUM, scale, source))
    assert region.array().tolist() == [scale] * 3


def test_a_whole_scale_may_come_as_a_float(memory, make):
    region = make(np.zeros(3, np.int32), consistency=Consistency.REGION)
    change = WideChange(0, 12, KernelCode.SUM, -2.0, make(np.ones(3, np.int32), name="s"))
    commit_wide(memory.writer, region, hold_of(region, memory.writer.locks), change)
    assert region.array().tolist() == [-2] * 3


FILES = {wide_module.__file__, commit_module.__file__}


def test_all_stripes_are_held_as_long_as_it_is_under_way(memory, region, source, monkeypatch):
    """A stripe let go early shows half a change, or has its next writer's WIDE cleared."""
    monkeypatch.setattr(accel, "journaled", kernels.journaled)
    other, words = memory.superblock.locks, memory.writer.words
    looks = []

    def trace(frame, event, _):
        if frame.f_code.co_filename in FILES and (
            region.header[RegionHeader.WIDE] != 0 or words[Intent.OPEN] != 0
        ):
            looks.append([other.is_held(region.lock_byte(stripe)) for stripe in range(3)])
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        hold = hold_of(region, memory.writer.locks)
        commit_wide(memory.writer, region, hold, change_of(source))
    finally:
        sys.settrace(before)
    assert len(looks) > 60
    assert all(all(look) for look in looks)


def test_a_region_freed_meanwhile_does_not_stop_what_has_begun(
    memory, region, source, monkeypatch
):
    held = wide_module.commit_held

    def freeing(*arguments):
        region.header[RegionHeader.STATE] = RegionState.FREED
        held(*arguments)

    monkeypatch.setattr(wide_module, "commit_held", freeing)
    hold = hold_of(region, memory.writer.locks)
    commit_wide(memory.writer, region, hold, change_of(source))
    assert np.array_equal(region.array(), DONE)
    assert not is_under_way(memory.writer)


def test_what_could_not_end_is_ended_once_when_it_is_called_again(
    memory, region, source, monkeypatch
):
    hold = hold_of(region, memory.writer.locks)
    with monkeypatch.context() as patch:
        patch.setattr(wide_module, "commit_held", None)
        with pytest.raises(TypeError):
            commit_wide(memory.writer, region, hold, change_of(source))
    assert is_under_way(memory.writer)
    finish_wide(memory.writer, region, hold)
    finish_wide(memory.writer, region, hold)
    assert np.array_equal(region.array(), DONE)
    assert not memory.superblock.locks.is_held(region.lock_byte(0))


def test_a_change_whose_operand_is_gone_is_told_of_and_left(memory, region, source):
    writer = Writer.create(memory.name)
    wide_module._intend(writer, region, change_of(source), None)
    region.header[RegionHeader.WIDE] = writer.slot_id
    source.segment.unlink()
    out, locks = np.empty(region.nbytes, np.uint8), memory.writer.locks
    with pytest.raises(SegmentError, match="free it") as error:
        read_held(region, hold_of(region, locks), 0, region.nbytes, out, locks)
    assert error.value.facts["source"] == source.address
    assert not memory.superblock.locks.is_held(region.lock_byte(0))
    writer.words[Intent.OPEN] = source.address
    with pytest.raises(SegmentError, match="damaged"):
        read_held(region, hold_of(region, locks), 0, region.nbytes, out, locks)
    writer.close()


@pytest.mark.parametrize("finder", ["sweep", "reader"])
def test_a_kill_at_any_line_leaves_all_or_nothing(memory, region, source, finder):
    def run() -> None:
        writer = Writer.create(memory.name)
        commit_wide(writer, region, hold_of(region, writer.locks), change_of(source))

    line, seen, killed = 1, set(), True
    while killed:
        region.array()[...] = BEGIN
        source.array()[COUNT:] = 0
        killed = killed_at(line, run, FILES)
        out = np.empty(region.nbytes, np.uint8)
        if finder == "sweep":
            assert memory.sweep_slots() == 1
            assert read_wide(region, 0, region.nbytes, out)
        else:
            locks = memory.writer.locks
            read_held(region, hold_of(region, locks), 0, region.nbytes, out, locks)
            memory.sweep_slots()
        happened = bool(out.view(np.float32)[0] != BEGIN[0])
        assert np.array_equal(out.view(np.float32), DONE if happened else BEGIN)
        if happened:
            assert np.array_equal(source.array()[COUNT:], BEGIN)
        seen.add(happened)
        line += 1 if line < 20 else 3
    assert seen == {True, False}
    assert line > 60
