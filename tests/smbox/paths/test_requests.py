"""Requests: empty ranges, cutting for batches, deadlines."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from smbox.errors import RegionFreedError
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths import requests
from smbox.paths.base import Operation
from smbox.paths.requests import Request


def request(region, first, limit, kernel=KernelCode.SUM, source=None):
    source = np.arange(limit - first).astype(np.uint8) if source is None else source
    return Request(
        region.info, Operation("test", kernel, 2, first, limit, source), None, "done"
    )


def test_an_empty_change_only_looks_whether_the_region_lives(box):
    region = box.create("some", shape=(4,))
    empty = request(region, 8, 8)
    assert requests.change(box._paths, empty, None) == "done"
    assert requests.change_nb(box._paths, empty).result() == "done"
    assert region.version == 0
    box.free(region)
    with pytest.raises(RegionFreedError):
        requests.change(box._paths, empty, None)
    out = np.empty(0, np.uint8)
    with pytest.raises(RegionFreedError):
        requests.read(box._paths, region.info, 8, 8, out, None)


def test_a_result_can_be_made_when_it_is_done(box):
    region = box.create("some", shape=(4,), dtype="uint8")
    handle = requests.begin(box._paths, request(region, 1, 3), lambda: "made")
    assert handle.result() == "made"
    assert region.get().tolist() == [0, 0, 2, 0]


def test_batch_items_are_cut_at_stripes(box):
    region = box.create("some", shape=(3 * STRIPE_NBYTES,), dtype="uint8")
    whole = request(region, STRIPE_NBYTES - 2, 2 * STRIPE_NBYTES + 1)
    items = requests.batch_items(whole)
    cuts = [(item.operation.first, item.operation.limit) for item in items]
    assert cuts == [
        (STRIPE_NBYTES - 2, STRIPE_NBYTES),
        (STRIPE_NBYTES, 2 * STRIPE_NBYTES),
        (2 * STRIPE_NBYTES, 2 * STRIPE_NBYTES + 1),
    ]
    joined = np.concatenate([item.operation.source for item in items])
    assert (joined == whole.operation.source).all()


def test_a_whole_kernel_s_source_is_not_cut(box):
    counter = box.counter("steps")
    source = np.arange(16, dtype=np.uint8)
    (item,) = requests.batch_items(request(counter, 0, 8, KernelCode.COMPARE_SWAP, source))
    assert item.operation.source is source


def test_deadlines():
    assert requests.deadline_of(math.inf) == math.inf
    assert time.monotonic() + 99 < requests.deadline_of(100.0) <= time.monotonic() + 100
