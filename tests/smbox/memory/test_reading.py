from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import LayoutMismatchError, RegionFreedError, SegmentError
from smbox.memory.commit import StripeBusy
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionState, Stripe
from smbox.memory.reading import Reader
from smbox.testing.dead_writer import leave_open

COUNT = STRIPE_NBYTES // 4 + 5


@pytest.fixture
def reader(other):
    return Reader(other)


@pytest.fixture
def region(make):
    return make(np.arange(COUNT, dtype=np.float32))


def read(reader, region, first: int, limit: int) -> list[float]:
    out = np.zeros((limit - first) // 4, np.float32)
    reader.read(region, first, limit, out.view(np.uint8))
    return out.tolist()


def test_a_range_over_two_stripes_is_copied(reader, region):
    at = STRIPE_NBYTES - 4
    assert read(reader, region, at, at + 12) == [at // 4, at // 4 + 1, at // 4 + 2]
    assert reader.done == 12


@pytest.mark.parametrize("shift", [0, 1, 4, 60, 63])
def test_a_long_read_leaves_the_caches_alone_and_is_the_same(reader, make, shift):
    """From 32 MiB on another copy function is used. Both ends are unaligned."""
    region = make(np.arange((8 << 20) + 99, dtype=np.float32))
    space = np.zeros(region.nbytes + 64, np.uint8)
    out = space[shift : shift + region.nbytes - 4]
    reader.read(region, 4, region.nbytes, out)
    assert np.array_equal(out, region.data[4:])
    assert not space[:shift].any()
    assert not space[shift + out.size :].any()


@pytest.mark.parametrize(("operand", "name"), [(10, "float16"), (11, "bfloat16")])
def test_a_float32_region_is_read_as_a_narrower_type(reader, make, operand, name):
    from smbox import dtypes

    numbers = np.random.default_rng(1).standard_normal(COUNT).astype(np.float32)
    out = np.zeros(COUNT - 1, dtypes.by_name(name).numpy)
    reader.read(make(numbers), 4, 4 * COUNT, out.view(np.uint8), operand=operand)
    assert out.tobytes() == numbers[1:].astype(out.dtype).tobytes()


def test_a_held_stripe_without_a_commit_is_read(reader, region, memory):
    region.try_lock(0, memory.writer.locks)
    assert read(reader, region, 4, 12) == [1, 2]
    region.unlock(0, memory.writer.locks)


def test_a_commit_in_the_making_is_busy_and_the_read_goes_on_there(reader, region, memory):
    region.try_lock(1, memory.writer.locks)
    region.table[1, Stripe.SEQUENCE] = Stripe.OPEN
    out = np.zeros(region.nbytes, np.uint8)
    with pytest.raises(StripeBusy) as busy:
        reader.read(region, 0, region.nbytes, out)
    assert busy.value.stripe == 1
    assert reader.done == STRIPE_NBYTES
    region.table[1, Stripe.SEQUENCE] = 1 << Stripe.COMMITS_SHIFT
    region.unlock(1, memory.writer.locks)
    reader.read(region, 0, region.nbytes, out, done=reader.done)
    assert np.array_equal(out, region.data)


def test_what_a_dead_writer_left_open_is_undone_and_read(reader, region, memory):
    leave_open(region, first=0, limit=STRIPE_NBYTES)
    assert read(reader, region, 4, 12) == [1, 2]
    assert region.version() == 0
    memory.sweep_slots()


def test_an_open_stripe_without_journal_stays_open(reader, region, other):
    region.table[0, Stripe.SEQUENCE] = Stripe.OPEN
    with pytest.raises(SegmentError):
        read(reader, region, 4, 12)
    assert region.table[0, Stripe.SEQUENCE] == Stripe.OPEN
    assert region.try_lock(0, other)


def test_a_region_without_locks_is_read_as_it_is(reader, make):
    region = make(np.arange(5, dtype=np.float32), consistency=Consistency.NONE)
    region.table[0, Stripe.SEQUENCE] = Stripe.OPEN
    assert read(reader, region, 4, 12) == [1, 2]


def test_a_freed_region_is_told_and_not_touched(reader, region):
    """If /dev/shm is full, an access to a released page would kill the process."""
    out = np.ones(20, np.uint8)
    region.state = RegionState.FREED
    with pytest.raises(RegionFreedError):
        reader.read(region, 0, 20, out)
    assert (out == 1).all()


@pytest.mark.parametrize("row_nbytes", [4, 100, STRIPE_NBYTES])
def test_rows_are_picked(reader, region, row_nbytes):
    first = 8
    rows = (region.nbytes - first) // row_nbytes
    places = np.array([rows - 1, 0, rows // 2, rows - 1], np.int64)
    out = np.zeros((4, row_nbytes), np.uint8)
    reader.read_rows(region, first, places, row_nbytes, out)
    data = region.data[first : first + rows * row_nbytes].reshape(rows, row_nbytes)
    assert np.array_equal(out, data[places])


def test_rows_of_a_narrower_type_are_picked(reader, region):
    out = np.zeros((2, 3), np.float16)
    places = np.array([2, 0], np.int64)
    reader.read_rows(region, 0, places, 12, out.view(np.uint8), operand=10)
    assert out.tolist() == [[6, 7, 8], [0, 1, 2]]


def test_a_row_of_a_commit_in_the_making_waits(reader, region, memory):
    region.try_lock(1, memory.writer.locks)
    region.table[1, Stripe.SEQUENCE] = Stripe.OPEN
    last = COUNT - 1
    out, places = np.zeros((2, 4), np.uint8), np.array([3, last], np.int64)
    with pytest.raises(StripeBusy):
        reader.read_rows(region, 0, places, 4, out)
    region.table[1, Stripe.SEQUENCE] = 0
    region.unlock(1, memory.writer.locks)
    reader.read_rows(region, 0, places, 4, out)
    assert out.reshape(-1).view(np.float32).tolist() == [3, last]


def test_only_floats_have_a_dot_product(reader, make):
    region = make(np.arange(4, dtype=np.int32))
    with pytest.raises(LayoutMismatchError, match="does not fit"):
        reader.dot(region, 0, region, 0, 16)
