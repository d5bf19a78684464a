"""Verbs between regions; the contract has what all transports promise of them."""

from __future__ import annotations

import numpy as np

from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.pair import PathPair

X = np.array([1, 2], np.float32)


def test_what_is_begun_has_its_own_op_and_scale(box):
    region, source = box.create("some", init=X), box.create("source", init=10 * X)
    region.accumulate_from_nb(source, scale=0.5).wait()
    assert region.get().tolist() == [6, 12]
    region.accumulate_from_nb(source, op="min").wait()
    assert region.get().tolist() == [6, 12]
    region.accumulate_from_nb(source, op="max").wait()
    assert region.get().tolist() == [10, 20]


def test_each_verb_has_its_name_and_its_own_timeout(box, monkeypatch):
    region, given = box.create("some", init=X), []
    monkeypatch.setattr(
        PathPair, "finish", lambda _, request, wait_s: given.append((request.op, wait_s))
    )
    region.accumulate_from(region, timeout_s=1.0)
    region.scale(2.0, timeout_s=2.0)
    region.dot(region, timeout_s=3.0)
    assert given == [("accumulate_from", 1.0), ("scale", 2.0), ("dot", 3.0)]


def test_a_region_is_added_to_itself_and_to_what_it_overlaps_within_a_stripe(region):
    limit = STRIPE_NBYTES // region.dtype.itemsize
    region[limit - 5 : limit].accumulate_from(region[limit - 8 : limit - 3])
    assert region[limit - 8 : limit + 3].get().tolist() == [1] * 3 + [2] * 5 + [1] * 3
    region.accumulate_from(region)
    assert region[limit - 8 : limit + 3].get().tolist() == [2] * 3 + [4] * 5 + [2] * 3


def test_parts_that_lie_apart_are_added_over_several_stripes(region):
    stripe = STRIPE_NBYTES // region.dtype.itemsize
    low, high = (region[at * stripe - 6 : at * stripe + 4] for at in (1, 2))
    low.accumulate_from(high)
    high.accumulate_from(low)
    assert (low.get().tolist(), high.get().tolist()) == ([2] * 10, [3] * 10)
