"""The helpers of the contract fail when they should."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.dtypes import TABLE
from smbox.memory.layout import Consistency
from smbox.testing.contract_tools import fresh, in_threads, raises, region_of, same, values
from smbox.testing.solo import solo_box, solo_boxes


def test_names_are_fresh():
    assert fresh("a") != fresh("a")


@pytest.mark.parametrize("dtype", TABLE, ids=lambda dtype: dtype.name)
def test_values_are_exact_and_differ(dtype):
    found = values(100, dtype)
    assert found.dtype == dtype.numpy
    assert (found == values(100, dtype)).all()
    assert len(set(found.astype(float).tolist())) > 1


def test_same_compares_bits():
    same(np.array([np.nan]), np.array([np.nan]))
    for other in (np.array([0.0], np.float32), np.zeros((1, 1)), np.array([-0.0])):
        with pytest.raises(AssertionError):
            same(np.array([0.0]), other)


def test_raises_needs_the_error():
    with raises(KeyError) as caught:
        raise KeyError("x")
    assert caught[0].args == ("x",)
    with pytest.raises(AssertionError, match="KeyError"), raises(KeyError):
        pass
    with pytest.raises(ValueError), raises(KeyError):
        raise ValueError


def test_in_threads_hands_errors_on():
    seen = []
    in_threads(3, seen.append)
    assert sorted(seen) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        in_threads(2, lambda index: 1 // index)


def test_region_of_frees_what_it_made():
    with solo_boxes() as opener, solo_box(opener) as box:
        with region_of(box, np.ones(2, np.float32)) as region:
            assert box.attach(region.name, timeout_s=0.0).get().tolist() == [1, 1]
        assert box.regions() == []


def test_region_of_frees_it_after_an_error_too():
    with solo_boxes() as opener, solo_box(opener) as box:
        with raises(ZeroDivisionError), region_of(box, [1, 2], "none") as region:
            assert region.info.consistency == Consistency.NONE
            raise ZeroDivisionError
        assert box.regions() == []
