from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.kernels import KernelCode, scatter_operand
from smbox.memory.layout import STRIPE_NBYTES
from smbox.rows import SUM_KERNELS, row_items
from smbox.wire.header import REQUEST_NBYTES_MAX

ROW = 96
TORN = STRIPE_NBYTES // ROW


@pytest.fixture
def info(client):
    return client.create(3 * STRIPE_NBYTES // 4)


def items_of(info, places, row=ROW, first=0):
    values = np.zeros((len(places), row // 4), np.float32)
    rows = np.array(places, np.int64), values
    return list(row_items(info, first, "accumulate", SUM_KERNELS, 1.0, *rows))


def test_rows_of_a_stripe_travel_together_over_no_more_than_they_need(info):
    (one, two) = items_of(info, [9, TORN + 2, 4, 9, TORN + 2])
    assert (one.first, one.limit) == (4 * ROW, 10 * ROW)
    assert (two.first, two.limit) == ((TORN + 2) * ROW, (TORN + 3) * ROW)
    assert one.kernel == KernelCode.SCATTER_SUM
    places = np.array([5, 0, 5], np.int64)
    assert np.array_equal(
        one.source, scatter_operand(places, np.zeros((3, ROW // 4), np.float32))
    )


def test_a_torn_row_travels_in_pieces(info):
    (head, tail) = items_of(info, [TORN])
    assert (head.first, head.limit) == (TORN * ROW, STRIPE_NBYTES)
    assert (tail.first, tail.limit) == (STRIPE_NBYTES, (TORN + 1) * ROW)
    assert head.kernel == tail.kernel == KernelCode.SUM
    assert head.source.size + tail.source.size == ROW


def test_a_slice_shifts_the_rows(info):
    (one,) = items_of(info, [TORN], first=4 * 24)  # it is not torn there
    assert one.first == 96 + TORN * ROW


@pytest.mark.parametrize(
    ("places", "row", "requests"), [([3] * 40, 64 * 1024, 3), (range(STRIPE_NBYTES // 8), 8, 2)]
)
def test_requests_stay_within_their_limit(info, places, row, requests):
    operations = items_of(info, places, row)
    assert len(operations) == requests
    assert all(each.source.size <= REQUEST_NBYTES_MAX for each in operations)


@pytest.mark.parametrize("row", [STRIPE_NBYTES + 4, REQUEST_NBYTES_MAX])
def test_rows_longer_than_a_stripe(info, row):
    assert [each.kernel for each in items_of(info, [0], row)] == [
        KernelCode.SUM,
        KernelCode.SUM,
    ]
