"""Tests of a node that is killed during large operations over tcp: each happens once."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from smbox.errors import RegionFreedError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion

pytestmark = pytest.mark.shares

COUNT = (16 << 20) // 4
STRIPES = (16 << 20) // STRIPE_NBYTES
MIDDLE = STRIPES // 2


@contextlib.contextmanager
def held_up(place, region, stripe):
    """Lock a stripe, so that an operation is certainly in progress."""
    mapped, locks = MappedRegion.attach(place.name, int(region.address)), LockFile(place.name)
    assert mapped.try_lock(stripe, locks)
    try:
        yield
    finally:
        locks.close()


def begin_elastic(region, x):
    return region.elastic_nb(x, 0.25)


BEGIN = {
    "put": lambda region, x: region.put_nb(x),
    "accumulate": lambda region, x: region.accumulate_nb(x, 2),
    "fetch": lambda region, x: region.fetch_and_op_nb(x),
    "elastic": begin_elastic,
}


@pytest.mark.parametrize("op", BEGIN)
def test_an_operation_goes_on_where_it_was(place, op):
    box = place.box("tcp")
    region = box.create("large", COUNT, init=8.0)
    x = np.arange(COUNT, dtype=np.float32)
    before = x.copy()
    with held_up(place, region, MIDDLE):
        handle = BEGIN[op](region, x)
        with pytest.raises(TimeoutError):
            handle.wait(0.5)
        while region_version(place, region) < MIDDLE:
            with contextlib.suppress(TimeoutError):
                handle.wait(0.1)
        assert region_version(place, region) == MIDDLE
        place.restart()
    handle.wait()
    delta = np.float32(0.25) * (before - np.float32(8))
    wanted = {
        "put": before,
        "accumulate": 8 + 2 * before,
        "fetch": 8 + before,
        "elastic": 8 + delta,
    }
    assert np.array_equal(region.get(), wanted[op])
    assert region.version == STRIPES
    assert np.array_equal(x, before - delta if op == "elastic" else before)
    if op == "fetch":
        assert (handle.result() == 8).all()


def region_version(place, region):
    return MappedRegion.attach(place.name, int(region.address)).version()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_freed_address_does_not_come_back(place, transport):
    box = place.box(transport)
    kept, top = box.create("kept", 1000, init=5.0), box.create("top", 1 << 20)
    box.free(top)
    place.restart()
    again = box.create("top", 1 << 20)
    assert again.address >= top.address + top.nbytes
    assert (kept.get() == 5).all()
    for gone in (top.get, lambda: box.get(top.address, 4)):
        with pytest.raises(RegionFreedError):
            gone()


def test_a_waiting_client_and_a_counter_go_on(place):
    box, other = place.box("tcp"), place.box("shm")
    counter, region = box.counter("steps"), box.create("some", 4)
    counter.add(3)
    place.restart()
    assert counter.add(1) in {3, 4}
    assert other.counter("steps").value == 4
    region.put(np.ones(4, np.float32))
    assert region.wait(version=1) == 1
