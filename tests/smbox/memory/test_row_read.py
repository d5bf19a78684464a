from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RegionFreedError
from smbox.memory.busy import StripeBusy
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionHeader, RegionState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.row_read import RowRead

ROW = 96  # bytes; every stripe ends inside a row
COUNT = 2 * STRIPE_NBYTES // ROW + 50


@pytest.fixture
def data():
    return np.random.default_rng(2).integers(0, 255, (COUNT, ROW)).astype(np.uint8)


@pytest.fixture(params=[Consistency.STRIPE, Consistency.NONE])
def region(make, data, request):
    return make(data, consistency=request.param)


def read_of(region, places, first=0):
    out = np.empty((len(places), ROW), np.uint8)
    return RowRead(region, first, np.asarray(places, np.int64), ROW, out), out


def test_rows_come_in_their_order_however_often(memory, region, data):
    across = STRIPE_NBYTES // ROW
    places = [across, 0, COUNT - 1, across, 2 * STRIPE_NBYTES // ROW, 3]
    read, out = read_of(region, places)
    read.step(memory.writer.locks)
    assert np.array_equal(out, data[places])
    read, out = read_of(region, [1, 0], first=5 * ROW)
    read.step(memory.writer.locks)
    assert np.array_equal(out, data[[6, 5]])


@pytest.mark.parametrize("orders", [True, False])
def test_a_row_of_a_commit_in_the_making_waits(memory, make, data, orders, monkeypatch):
    monkeypatch.setattr("smbox.memory.row_read.ORDERS_LOADS", orders)
    region = make(data)
    across = STRIPE_NBYTES // ROW
    locks = LockFile(memory.name)
    assert locks.try_lock(region.lock_byte(1))
    region.table[1, Stripe.SEQ] += 1
    read, out = read_of(region, [0, across, across + 9])
    for _ in range(2):
        with pytest.raises(StripeBusy):
            read.step(memory.writer.locks)
    region.data[:ROW] = 7  # row 0 is read already
    region.data[across * ROW : (across + 1) * ROW] = 9
    region.table[1, Stripe.SEQ] += 1
    locks.close()
    read.step(memory.writer.locks)
    assert np.array_equal(out[0], data[0])
    assert (out[1] == 9).all()
    assert np.array_equal(out[2], data[across + 9])


def test_a_freed_region_is_told(memory, region):
    region.header[RegionHeader.STATE] = RegionState.FREED
    with pytest.raises(RegionFreedError):
        read_of(region, [0])[0].step(memory.writer.locks)
