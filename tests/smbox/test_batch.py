"""Batches: checked when added to, sent when the block ends, cut at stripes."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from smbox.errors import (
    ConfigError,
    LayoutMismatchError,
    PeerLostError,
    RegionFreedError,
    RequestTimeoutError,
)
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.solo import solo_box, solo_boxes


def test_nothing_is_sent_before_the_block_ends(box):
    region = box.create("some", shape=(4,))
    with box.batch() as batch:
        batch.put(region, np.ones(4, np.float32))
        assert region.version == 0
        assert len(batch) == 1
    assert region.version == 1


def test_each_change_has_its_own_op_and_scale(box):
    region = box.create("some", init=np.array([1, 5], np.float32))
    three = np.full(2, 3, np.float32)
    with box.batch() as batch:
        batch.accumulate(region, three, op="max")
        high = batch.fetch_and_op(region, three + 1, op="min")
        low = batch.fetch_and_op(region, three, scale=2.0)
    assert (high.tolist(), low.tolist()) == ([3, 5], [3, 4])
    assert region.get().tolist() == [9, 10]


def put_all(box, *changes, **more):
    with box.batch(**more) as batch:
        for region, x in changes:
            batch.put(region, x)


def test_what_does_not_fit_is_told_at_once(box):
    region = box.create("some", shape=(4,))
    with pytest.raises(ConfigError, match="number of seconds"):
        box.batch(timeout_s=np.nan)
    with pytest.raises(LayoutMismatchError):
        put_all(box, (region, np.ones(4, np.float32)), (region, np.ones(5, np.float32)))
    assert region.version == 0


def test_a_region_of_another_memory_is_told_at_once_and_nothing_is_sent(box):
    region = box.create("some", shape=(4,))
    with solo_boxes() as opener, solo_box(opener) as other:
        foreign = other.create("some", shape=(4,))
        with pytest.raises(PeerLostError, match="in another memory"):
            put_all(box, (region, np.ones(4, np.float32)), (foreign, np.ones(4, np.float32)))
    assert region.version == 0


def test_large_changes_are_cut_at_stripes(box):
    region = box.create("large", shape=(STRIPE_NBYTES + 3,), dtype="uint8")
    x = np.arange(STRIPE_NBYTES + 3).astype(np.uint8)
    with box.batch() as batch:
        batch.put(region, x)
        old = batch.fetch_and_op(region[5:], np.ones(STRIPE_NBYTES - 2, np.uint8))
        assert len(batch) == 4
    assert (old == x[5:]).all()
    assert region.version == 4


def test_old_bytes_and_moves_come_back_into_the_part_that_was_cut(box):
    count = STRIPE_NBYTES // 4 + 3
    region = box.create("large", init=np.arange(count, dtype=np.float32))
    x, moved = np.ones(count, np.float32), np.zeros(count - 5, np.float32)
    delta = np.empty(count - 5, np.float32)
    before = region.get()
    with box.batch() as batch:
        old = batch.fetch_and_op(region, x)
        batch.elastic(region[5:], moved, 0.5)
        batch.elastic(region[5:], np.zeros(count - 5, np.float32), 0.5, delta)
    assert (old == before).all()
    assert (moved == 0.5 * (before + 1)[5:]).all()
    assert (delta == -0.25 * (before + 1)[5:]).all()


def test_a_change_uses_no_array_that_an_earlier_one_writes(box):
    """All of them are packed before the first one is done."""
    one, two = box.create("one", (4,)), box.create("two", (4,))
    x, y = np.ones(4, np.float32), np.ones(2, np.float32)

    def moved_twice(batch):
        batch.elastic(one, x, 0.5)
        batch.elastic(two, x, 0.5)

    def moved_and_put(batch):
        batch.elastic(one, x, 0.5)
        batch.put(two[:2], x[2:])

    def old_put(batch):
        batch.put(two, batch.fetch_and_op(one, x))

    def difference_put(batch):
        batch.put(two[:2], batch.elastic(one[:2], x[:2], 0.5, delta=y))

    def moved_and_copied(batch):
        batch.elastic(one, x, 0.5)
        batch.put(two[:2], x[::2])

    def moved_and_reversed(batch):
        batch.elastic(one[:1], x[:1], 0.5)
        batch.put(two, x[::-1])

    for add in (
        *(moved_twice, moved_and_put, old_put, difference_put),
        *(moved_and_copied, moved_and_reversed),
    ):
        with (
            pytest.raises(ConfigError, match="two arrays or two batches"),
            box.batch() as batch,
        ):
            add(batch)
    assert (one.version, two.version) == (0, 0)
    assert x.tolist() == [1.0] * 4
    with box.batch() as batch:  # what is empty hides nothing
        batch.elastic(one[:2], y, 0.0)
        batch.elastic(one[:0], y[1:][:0], 0.0)
        batch.put(two[:2], x[1::2])
        batch.put(two[:2], [3.0, 4.0])
        with pytest.raises(ConfigError, match="two arrays or two batches"):
            batch.put(two[:1], y[1:])
    with box.batch() as batch:  # x is put before it is moved, part by part
        batch.put(two[2:], x[:2])
        batch.elastic(one[:2], x[:2], 0.5)
        batch.elastic(one[2:], x[2:], 0.5)
        batch.put(two[:2], y)
        batch.accumulate(two[:2], y)
    assert x.tolist() == one.get().tolist() == [0.5] * 4
    assert two.get().tolist() == [2.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize("reused", range(5))
def test_written_arrays_are_known_in_whatever_order_they_lie(box, reused):
    region, arrays = box.create("w", shape=(4,)), np.zeros((5, 4), np.float32)
    with box.batch() as batch:
        for row in (3, 1, 4, 0, 2):
            batch.elastic(region, arrays[row], 0.5)
        with pytest.raises(ConfigError, match="use two arrays"):
            batch.put(region, arrays[reused])


def test_a_batch_is_sent_once(box):
    region = box.create("some", shape=(4,))
    with box.batch() as batch, batch:
        batch.accumulate(region, np.ones(4, np.float32))
    with batch:
        pass
    assert region.version == 1
    with pytest.raises(ConfigError):
        batch.put(region, np.ones(4, np.float32))


def test_a_batch_takes_nothing_outside_its_block(box):
    """It took changes that were never sent."""
    region = box.create("some", shape=(4,))
    batch = box.batch()
    with pytest.raises(ConfigError, match="inside its with block"):
        batch.put(region, np.ones(4, np.float32))
    with batch:
        batch.accumulate(region, np.ones(4, np.float32))
    assert region.get().tolist() == [1] * 4


def test_a_batch_whose_block_failed_is_never_sent(box):
    region = box.create("some", shape=(4,))
    with suppress(ZeroDivisionError), box.batch() as batch:
        batch.put(region, np.ones(4, np.float32))
        raise ZeroDivisionError
    with batch:
        pass
    assert region.version == 0


def test_a_failure_stops_no_other_change(box):
    freed, region = box.create("freed", shape=(4,)), box.create("some", shape=(4,))
    box.free(freed)
    two = np.ones(2, np.float32)
    with pytest.raises(RegionFreedError):
        put_all(box, (region[:2], two), (freed, np.ones(4, np.float32)), (region[2:], two))
    assert region.get().tolist() == [1, 1, 1, 1]


def test_a_batch_that_timed_out_tells_what_it_did(box, held):
    one, two = box.create("one", shape=(2,)), box.create("two", shape=(2,))
    ones = np.ones(2, np.float32)
    with held(two), pytest.raises(RequestTimeoutError) as caught:
        put_all(box, (one, ones), (two, ones), timeout_s=0.01)
    assert caught.value.facts["outcome"] == caught.value.handle.outcome() == "partial"
    assert caught.value.facts["timeout_s"] == 0.01
    assert one.get().tolist() == [1, 1]
    assert two.get().tolist() == [0, 0]
