"""What is in the way of compiled items, seen through their door, commit_items."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.accel import Engine
from smbox.memory.change import Receipt
from smbox.memory.item_run import commit_items
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


def ordered(*ranges: tuple[int, int]) -> np.ndarray:
    """Orders of (global address, bytes), with scale 1."""
    one = int(np.float64(1).view(np.uint64))
    rows = [(nbytes << 32 | 0x212, address, nbytes, one) for address, nbytes in ranges]
    return np.array(rows, np.uint64)


def test_a_held_stripe_ends_the_run_before_it(memory, make, receipt):
    region = make(np.zeros(COUNT))
    base = region.address
    orders = ordered((base, 8), (base + region.nbytes - 8, 8), (base + 8, 8))
    source = np.ones(3).view(np.uint8)
    locks = LockFile(memory.name)
    assert locks.try_lock(region.lock_byte(2))
    run = (memory.writer, region, KernelCode.SUM)
    assert commit_items(*run, orders, 0, source, receipt) == receipt.row.applied == 1
    locks.close()
    assert commit_items(*run, orders[1:], 8, source, Receipt(receipt.row, 2)) == 2
    assert receipt.row.applied == 3
    assert region.array().sum() == 3


def test_what_an_order_may_not_be_ends_the_run_before_it(memory, make, receipt):
    region = make(np.zeros(COUNT))
    base, source = region.address, np.zeros(3 + 64, np.uint8)
    good = (base, 8)
    bad = [
        (base + region.nbytes - 8, 16),
        (base + region.nbytes, 8),
        (base - 8, 16),
        (base - 8, 8),
        (0, 8),
        (2**64 - 8, 8),
        (base, 0),
        (base + 4, 8),
        (base, 12),
        (base + STRIPE_NBYTES - 8, 16),
        (base, 64),  # its operand is cut off
    ]
    for at, wrong in enumerate(bad, 1):
        each = Receipt(receipt.row, at)
        orders = ordered(good, wrong, good)
        run = (memory.writer, region, KernelCode.SUM, orders, 3, source, each)
        assert commit_items(*run) == 1, wrong
    assert region.version() == len(bad)


@pytest.mark.parametrize("word", [1, 1 << 8, 1 << 32], ids=["op", "kernel", "operand"])
def test_who_is_not_alike_ends_the_run_before_it(memory, make, receipt, word):
    region = make(np.zeros(8))
    orders = ordered(*[(region.address, 8)] * 3)
    orders[1, 0] ^= np.uint64(word)
    source = np.ones(8).view(np.uint8)
    assert commit_items(memory.writer, region, KernelCode.SUM, orders, 0, source, receipt) == 1


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1e30])
def test_a_scale_that_asks_for_thought_ends_the_run_before_it(memory, make, receipt, scale):
    region = make(np.zeros(8))
    orders = ordered(*[(region.address, 8)] * 2)
    orders[1, 3] = np.float64(scale).view(np.uint64)
    source = np.ones(2).view(np.uint8)
    assert commit_items(memory.writer, region, KernelCode.SUM, orders, 0, source, receipt) == 1


def test_regions_without_locks_are_left_alone(memory, make, receipt):
    region = make(np.zeros(8), consistency=Consistency.NONE)
    run = (KernelCode.SUM, ordered((region.address, 8)), 0, np.ones(8, np.uint8), receipt)
    assert commit_items(memory.writer, region, *run) == 0


def test_freed_and_closed_regions_are_left_alone(memory, make, receipt):
    region = make(np.zeros(8))
    run = (KernelCode.SUM, ordered((region.address, 8)), 0, np.ones(8, np.uint8), receipt)
    region.header[RegionHeader.STATE] = RegionState.FREED
    assert commit_items(memory.writer, region, *run) == 0
    region.header[RegionHeader.STATE] = RegionState.LIVE
    mine = MappedRegion.attach(memory.name, region.offset)
    mine.close()
    assert commit_items(memory.writer, mine, *run) == 0
    assert receipt.row.applied == 0
