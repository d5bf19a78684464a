"""What is in the way of compiled items, seen through their door, commit_items."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.accel import Engine
from smbox.memory.change import Receipt
from smbox.memory.item_run import Place, commit_items
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionHeader, RegionState
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion

pytest.importorskip("numba", reason="without it there are no runs")
COUNT = 3 * STRIPE_NBYTES // 8


@pytest.fixture(autouse=True)
def loaded(monkeypatch, engine: Engine) -> None:
    monkeypatch.setattr(accel, "loaded", lambda: engine)


@pytest.fixture
def receipt(memory) -> Receipt:
    return Receipt(memory.channels.claim(1, 0), 1)


def test_a_held_stripe_ends_the_run_before_it(memory, make, receipt):
    region = make(np.zeros(COUNT))
    places = [Place(first, first + 8, 0, 1.0) for first in (0, region.nbytes - 8, 8)]
    source = np.ones(1).view(np.uint8)
    locks = LockFile(memory.name)
    assert locks.try_lock(region.lock_byte(2))
    run = (memory.writer, region, KernelCode.SUM, places, source, receipt)
    assert commit_items(*run) == receipt.row.applied == 1
    locks.close()
    rest = Receipt(receipt.row, 2)
    assert commit_items(*run[:3], places[1:], source, rest) == 2
    assert receipt.row.applied == 3
    assert region.array().sum() == 3


def test_what_a_place_may_not_be_ends_the_run_before_it(memory, make, receipt):
    region = make(np.zeros(COUNT))
    source = np.zeros(3 + 64, np.uint8)
    good = Place(0, 8, 3, 1.0)
    bad = [
        Place(region.nbytes - 8, region.nbytes + 8, 3, 1.0),
        Place(-8, 8, 3, 1.0),
        Place(8, 8, 3, 1.0),
        Place(STRIPE_NBYTES - 8, STRIPE_NBYTES + 8, 3, 1.0),
        Place(0, 64, 4, 1.0),
        Place(0, 8, -1, 1.0),
    ]
    for at, place in enumerate(bad, 1):
        each = Receipt(receipt.row, at)
        places = [good, place, good]
        assert commit_items(memory.writer, region, KernelCode.SUM, places, source, each) == 1
    assert region.version() == len(bad)


@pytest.mark.parametrize("consistency", [Consistency.NONE, Consistency.REGION])
def test_regions_of_another_consistency_are_left_alone(memory, make, receipt, consistency):
    region = make(np.zeros(8), consistency=consistency)
    run = (KernelCode.SUM, [Place(0, 8, 0, 1.0)], np.ones(8, np.uint8), receipt)
    assert commit_items(memory.writer, region, *run) == 0


def test_freed_and_closed_regions_are_left_alone(memory, make, receipt):
    region = make(np.zeros(8))
    run = (KernelCode.SUM, [Place(0, 8, 0, 1.0)], np.ones(8, np.uint8), receipt)
    region.header[RegionHeader.STATE] = RegionState.FREED
    assert commit_items(memory.writer, region, *run) == 0
    region.header[RegionHeader.STATE] = RegionState.LIVE
    mine = MappedRegion.attach(memory.name, region.offset)
    mine.close()
    assert commit_items(memory.writer, mine, *run) == 0
    assert receipt.row.applied == 0
