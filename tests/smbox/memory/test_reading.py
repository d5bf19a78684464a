from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RegionFreedError, SegmentError
from smbox.memory import reading
from smbox.memory.busy import StripeBusy
from smbox.memory.layout import Consistency, RegionHeader, RegionState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import Piece
from smbox.memory.reading import read_piece, read_range

PIECE = Piece(0, 4, 12)


@pytest.fixture
def locks(memory):
    locks = LockFile(memory.name)
    yield locks
    locks.close()


def read(region, locks) -> list[float]:
    out = np.empty(8, np.uint8)
    read_piece(region, PIECE, out, locks)
    return out.view(np.float32).tolist()


def test_a_piece_is_copied(make, locks):
    assert read(make(np.arange(5, dtype=np.float32)), locks) == [1, 2]


def test_an_open_stripe_under_a_held_lock_is_busy(memory, make, locks):
    region = make(np.arange(5, dtype=np.float32))
    region.table[0, Stripe.SEQ] = 1
    memory.writer.locks.try_lock(region.lock_byte(0))
    with pytest.raises(StripeBusy):
        read(region, locks)


def test_an_open_stripe_without_journal_stays_open(make, locks):
    region = make(np.arange(5, dtype=np.float32))
    region.table[0, Stripe.SEQ] = 1
    with pytest.raises(SegmentError):
        read(region, locks)
    assert region.table[0, Stripe.SEQ] == 1
    assert locks.try_lock(region.lock_byte(0))


def test_a_lock_free_region_is_read_as_it_is(make, locks):
    region = make(np.arange(5, dtype=np.float32), consistency=Consistency.NONE)
    region.table[0, Stripe.SEQ] = 1
    assert read(region, locks) == [1, 2]


def test_where_loads_have_no_order_the_lock_is_taken(make, locks, monkeypatch):
    monkeypatch.setattr(reading, "ORDERS_LOADS", False)
    region = make(np.arange(5, dtype=np.float32))
    assert read(region, locks) == [1, 2]
    other = LockFile(region.node)
    other.try_lock(region.lock_byte(0))
    with pytest.raises(StripeBusy):
        read(region, locks)
    other.close()


def test_a_freed_region_is_told_and_not_touched(make, locks):
    """To touch a page that was given back ends a process where /dev/shm is full."""
    region, out = make(np.arange(5, dtype=np.float32)), np.ones(20, np.uint8)
    region.header[RegionHeader.STATE] = RegionState.FREED
    with pytest.raises(RegionFreedError):
        read_range(region, 0, 20, out, locks)
    assert (out == 1).all()


def test_a_region_that_is_freed_meanwhile_is_told_after_the_copy(make, locks, monkeypatch):
    region = make(np.arange(5, dtype=np.float32))
    copyto = np.copyto

    def copy_and_free(*arrays):
        copyto(*arrays)
        region.header[RegionHeader.STATE] = RegionState.FREED

    monkeypatch.setattr(np, "copyto", copy_and_free)
    with pytest.raises(RegionFreedError):
        read(region, locks)
