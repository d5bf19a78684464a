"""Requests: empty ranges, cutting for batches, deadlines."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RegionFreedError
from smbox.memory.kernels import KernelCode, packed_scale
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.requests import Operation, Reading, RowsReading


def operation(region, first, limit):
    source = np.arange(limit - first).astype(np.uint8)
    two = packed_scale(KernelCode.SUM, region.info.dtype, 2)
    return Operation(region.info, "test", KernelCode.SUM, two, first, limit, source)


def test_an_empty_change_only_looks_whether_the_region_lives(box, paths):
    region = box.create("some", shape=(4,))
    empty = operation(region, 8, 8)
    paths.finish(empty, None)
    assert paths.begin(empty, lambda: "done").result() == "done"
    assert region.version == 0
    box.free(region)
    with pytest.raises(RegionFreedError):
        paths.finish(empty, None)
    out = np.empty(0, np.uint8)
    with pytest.raises(RegionFreedError):
        paths.finish(Reading(region.info, 8, 8, out), None)


def test_a_result_can_be_made_when_it_is_done(box, paths):
    region = box.create("some", shape=(4,), dtype="uint8")
    handle = paths.begin(operation(region, 1, 3), lambda: "made")
    assert handle.result() == "made"
    assert region.get().tolist() == [0, 0, 2, 0]


def test_an_operation_is_cut_at_stripes(box):
    region = box.create("some", shape=(3 * STRIPE_NBYTES,), dtype="uint8")
    whole = operation(region, STRIPE_NBYTES - 2, 2 * STRIPE_NBYTES + 1)
    parts = whole.stripes()
    assert [(part.first, part.limit) for part in parts] == [
        (STRIPE_NBYTES - 2, STRIPE_NBYTES),
        (STRIPE_NBYTES, 2 * STRIPE_NBYTES),
        (2 * STRIPE_NBYTES, 2 * STRIPE_NBYTES + 1),
    ]
    assert (np.concatenate([part.source for part in parts]) == whole.source).all()


def test_a_portion_of_rows_ends_at_a_stripe(box):
    row_nbytes = 1000  # rows 0 to 523 lie in the first stripe, and a part of row 524
    info = box.create("rows", shape=(2000, row_nbytes), dtype="uint8").info
    places = np.arange(2000)
    out = np.empty((2000, row_nbytes), np.uint8)
    reading = RowsReading(info, 0, row_nbytes, places, places, out)
    assert reading.portion_limit(0) == 525  # 1 MiB ends between rows of the second stripe
