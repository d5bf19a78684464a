from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox.memory import accel
from smbox.memory.accel import Engine
from smbox.memory.layout import (
    STRIPE_NBYTES,
    Consistency,
    RegionHeader,
    RegionState,
    Stripe,
)
from smbox.memory.read_run import read_run

pytest.importorskip("numba", reason="without it there are no runs")
COUNT = 2 * STRIPE_NBYTES // 8 + 1001  # float64: two stripes and a piece of a third
ALL = 8 * COUNT
DATA = np.random.default_rng(1).standard_normal(COUNT)


@pytest.fixture(autouse=True)
def loaded(monkeypatch, engine: Engine) -> None:
    monkeypatch.setattr(accel, "prepare", lambda _nbytes: engine)


@pytest.mark.parametrize(
    ("first", "limit"), [(0, ALL), (1, ALL - 1), (STRIPE_NBYTES, STRIPE_NBYTES + 1), (5, 5)]
)
@pytest.mark.parametrize("consistency", [Consistency.STRIPE, Consistency.NONE])
def test_it_reads_what_is_there(make, first: int, limit: int, consistency: int):
    region = make(DATA, consistency=consistency)
    out = np.zeros(limit - first, np.uint8)
    assert read_run(region, first, limit, out) == limit
    assert out.tobytes() == DATA.tobytes()[first:limit]


def test_an_array_of_any_shape_can_be_filled(make):
    out = np.zeros((COUNT // 7, 7))
    assert read_run(make(DATA), 8, 8 + out.nbytes, out) == 8 + out.nbytes
    assert out.reshape(-1).tolist() == DATA[1 : 1 + out.size].tolist()


@pytest.mark.parametrize("stripe", [0, 1, 2])
def test_a_commit_that_stays_open_stops_it(make, stripe: int):
    region, out = make(DATA), np.zeros(COUNT)
    region.table[stripe, Stripe.SEQ] += 1
    done = stripe * STRIPE_NBYTES
    assert read_run(region, 0, ALL, out) == done
    assert out.tobytes() == DATA.tobytes()[:done] + bytes(ALL - done)


def test_a_freed_region_stops_it(make):
    region = make(DATA)
    region.header[RegionHeader.STATE] = RegionState.FREED
    assert read_run(region, 0, ALL, np.zeros(COUNT)) == 0


def test_a_closed_region_stops_it(memory, make):
    region = make(DATA)
    memory.regions.pop(region.address)
    region.close()
    assert read_run(region, 0, ALL, np.zeros(COUNT)) == 0


@pytest.mark.parametrize(
    ("first", "limit", "count"), [(0, ALL + 8, COUNT + 1), (-8, 8, 2), (0, 16, 1)]
)
def test_what_does_not_fit_is_left_alone(make, first: int, limit: int, count: int):
    out = np.zeros(count)
    assert read_run(make(DATA), first, limit, out) == first
    assert not out.any()


def test_gaps_are_refused(make):
    with pytest.raises(ConfigError, match="contiguous"):
        read_run(make(DATA), 0, 80, np.zeros(20)[::2])


def test_without_the_engine_nothing_is_done(make, monkeypatch):
    for engine in (None, Engine(lambda: None, None, None)):
        monkeypatch.setattr(accel, "prepare", lambda _nbytes, engine=engine: engine)
        assert read_run(make(DATA, f"r{engine is None}"), 0, ALL, np.zeros(COUNT)) == 0
