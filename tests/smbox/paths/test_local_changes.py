"""Local batches, changes from another region, and narrower operands."""

from __future__ import annotations

import numpy as np
import pytest

import smbox.dtypes
from smbox.errors import RegionFreedError
from smbox.memory.layout import STRIPE_NBYTES

COUNT = 2 * STRIPE_NBYTES // 8 + 4
ONES = np.ones(COUNT)


def test_a_failed_change_of_a_batch_keeps_none_of_the_others(box, region):
    gone, gone_too = box.create("gone", shape=(4,)), box.create("another", shape=(4,))
    for each in (gone, gone_too):
        box.free(each)
    counter = box.create("count", shape=(1,), dtype="int64")

    def send():
        with box.batch() as batch:
            batch.accumulate(counter, np.array([1]))
            batch.put(gone, np.zeros(4, np.float32))
            batch.accumulate(counter, np.array([2]))
            batch.put(gone_too, np.zeros(4, np.float32))
            batch.accumulate(region, ONES)

    with pytest.raises(RegionFreedError, match="gone"):  # the first one
        send()
    assert counter.get().tolist() == [3]
    assert (region.get() == 2).all()


def test_many_changes_of_a_batch_are_one_after_another(box):
    region = box.create("few", shape=(8,), dtype="int64")
    with box.batch() as batch:
        for number in range(300):
            batch.accumulate(region[number % 8 : number % 8 + 1], np.array([number]))
        old = batch.fetch_and_op(region, np.zeros(8, np.int64))
    assert old.sum() == sum(range(300))


def test_a_change_from_a_part_of_the_same_region_takes_what_was_there(box):
    region = box.create("same", shape=(100,), dtype="int64", init=np.arange(100))
    region[1:].accumulate_from(region[:-1], op="replace")
    assert region.get().tolist() == [0, *range(99)]


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_narrower_operand_widens_exactly(box, narrow):
    dtype = smbox.dtypes.by_name(narrow).numpy
    region = box.create("wide", shape=(1000,), init=1.0)
    x = np.linspace(-2, 2, 1000).astype(dtype)
    wide = x.astype(np.float32)
    region.accumulate(x, scale=0.5)
    assert (region.get() == np.float32(1) + np.float32(0.5) * wide).all()
    assert (region.fetch_and_op(x, op="replace") == np.float32(1) + wide / 2).all()
    assert (region.get(out=np.empty(1000, dtype)) == x).all()
    moved = (wide + 1).astype(dtype)
    delta = np.float32(0.25) * (moved.astype(np.float32) - wide)
    expected = (moved.astype(np.float32) - delta).astype(dtype)
    region.elastic(moved, 0.25)
    assert (moved == expected).all()
    assert (region.get() == wide + delta).all()


def test_a_source_that_overlaps_over_several_stripes_is_refused(box):
    region = box.create("long", shape=(200_000,), dtype="int64", init=np.arange(200_000))
    for target, source in ((region[1:], region[:-1]), (region[:-1], region[1:])):
        with pytest.raises(smbox.ConfigError, match="overlap over several stripes"):
            target.accumulate_from(source, op="replace")
    assert (region.get() == np.arange(200_000)).all()
    region.accumulate_from(region)  # itself, element by element
    assert (region.get() == 2 * np.arange(200_000)).all()
