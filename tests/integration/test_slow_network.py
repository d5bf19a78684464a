"""Test of large arrays on a link where one message takes longer than the retry time."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytestmark = pytest.mark.shares

PACE = 4e6  # a request of 2 MiB takes 0.5 s; the first retry comes after 0.2 s
TIMEOUT_S = 3.0
COUNT = 16 << 18


def test_what_is_large_gets_through_whatever_time_it_takes(place):
    box = place.box("tcp", timeout_s=TIMEOUT_S)
    region = box.create("large", COUNT)
    x = np.arange(COUNT, dtype=np.float32)
    place.proxy.pace = PACE
    begun_s = time.monotonic()
    region.put(x)
    assert time.monotonic() - begun_s > TIMEOUT_S  # otherwise the link was not slow
    few = slice(0, COUNT // 8)
    mine = np.zeros(COUNT // 8, np.float32)
    region[few].elastic(mine, 0.5)
    place.proxy.pace = 1e9
    half = x[few] / 2
    np.testing.assert_array_equal(mine, half)
    np.testing.assert_array_equal(region[few].get(), half)
    np.testing.assert_array_equal(region.get()[COUNT // 8 :], x[COUNT // 8 :])
