"""Reads beside a writer of this process; alone, they are tested by test_read_run.py."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.change import Change
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, RegionHeader, RegionState, Stripe
from smbox.memory.stripe_run import commit_run

pytest.importorskip("numba", reason="without it there are no runs")
STRIPES = 2
NBYTES = STRIPES * STRIPE_NBYTES
READS = 200
DEADLINE_S = 60.0


@pytest.fixture
def read_stripes():
    engine = accel.load()
    if engine is None or engine.read_stripes is None:
        pytest.skip("SMBOX_ACCEL=0, or this machine may reorder loads: it has no runs")
    return engine.read_stripes


def test_no_read_sees_half_a_commit(memory, make, read_stripes):
    region, ended = make(np.zeros(NBYTES // 8, np.int64)), threading.Event()
    change = Change(KernelCode.SUM, np.ones(NBYTES // 8, np.int64))

    def add_for_ever() -> None:
        while not ended.is_set():
            commit_run(memory.writer, region, 0, NBYTES, change)

    writer = threading.Thread(target=add_for_ever)
    writer.start()
    seen, whole, deadline_s = set(), 0, time.monotonic() + DEADLINE_S
    out = np.zeros(STRIPE_NBYTES, np.uint8)
    try:
        while whole < READS or len(seen) < 2:
            assert time.monotonic() < deadline_s
            reached = read_stripes(
                region.header, region.table, region.data, 0, STRIPE_NBYTES, out
            )
            if reached:
                values = set(out.view(np.int64).tolist())
                assert len(values) == 1
                seen |= values
                whole += 1
    finally:
        ended.set()
        writer.join()


def test_a_stripe_that_stays_open_is_given_up(make, read_stripes):
    region, out = make(np.zeros(NBYTES // 8, np.int64)), np.zeros(NBYTES, np.uint8)
    region.table[1, Stripe.SEQ] += 1
    arguments = (region.header, region.table, region.data, 0, NBYTES, out)
    assert read_stripes(*arguments) == STRIPE_NBYTES
    region.table[1, Stripe.SEQ] += 1
    assert read_stripes(*arguments) == NBYTES


def test_a_freed_region_is_not_touched(make, read_stripes):
    region, out = make(np.zeros(NBYTES // 8, np.int64)), np.ones(NBYTES, np.uint8)
    region.header[RegionHeader.STATE] = RegionState.FREED
    assert read_stripes(region.header, region.table, region.data, 0, NBYTES, out) == 0
    assert (out == 1).all()


def test_what_is_closed_or_does_not_fit_is_left_alone(make, read_stripes):
    region, out = make(np.zeros(NBYTES // 8, np.int64)), np.ones(NBYTES, np.uint8)
    nothing = np.empty(0, np.uint64)
    for header, table, limit in (
        (nothing, region.table, NBYTES),
        (region.header, nothing.reshape(0, 8), NBYTES),
        (region.header, region.table, NBYTES + 8),
    ):
        assert read_stripes(header, table, region.data, 0, limit, out) == 0
    assert (out == 1).all()
