"""Verbs between regions; the contract has what all transports promise of them."""

from __future__ import annotations

import numpy as np

X = np.array([1, 2], np.float32)


def test_what_is_begun_has_its_own_op_and_scale(box):
    region, source = box.create("some", init=X), box.create("source", init=10 * X)
    region.accumulate_from_nb(source, scale=0.5).wait()
    assert region.get().tolist() == [6, 12]
    region.accumulate_from_nb(source, op="min").wait()
    assert region.get().tolist() == [6, 12]
    region.accumulate_from_nb(source, op="max").wait()
    assert region.get().tolist() == [10, 20]
