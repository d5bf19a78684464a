from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import OutOfMemoryError, RegionFreedError
from smbox.memory import layout
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import RegionState
from smbox.memory.locks import LockFile
from smbox.memory.mapped import Building, MappedRegion
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import Segment, listing, room_nbytes
from smbox.testing.regions import build, commit


def spec(nbytes: int) -> RegionSpec:
    return RegionSpec("r", dtypes.by_name("float32"), (nbytes // 4,))


def test_a_region_is_seen_when_it_is_whole(memory):
    making = Building(memory.name, spec(20 << 20), 1 << 20, init=1.5)
    steps = 1
    while not making.step():
        steps += 1
        assert listing(layout.name_of(memory.name, "region.")) == []
    assert steps == 3
    region = making.finish(RegionState.LIVE)
    assert np.all(region.array() == 1.5)
    region.segment.unlink()


def test_given_up_it_leaves_nothing(memory):
    making = Building(memory.name, spec(4096), 1 << 20)
    making.step()
    making.abandon()
    assert listing(f"smbox.{memory.name}.building") == []


def test_no_room_is_told_at_once(memory):
    with pytest.raises(OutOfMemoryError, match="no room"):
        build(memory.name, spec(room_nbytes() + (1 << 20)), 1 << 20)
    assert listing(f"smbox.{memory.name}.building") == []


def test_a_freed_region_takes_no_change_even_of_old_mappings(memory, make):
    region = make(np.ones(1000, np.float32))
    old = MappedRegion.attach(memory.name, region.offset)
    memory.free(region)
    source = np.ones(1000, np.float32).view(np.uint8)
    with pytest.raises(RegionFreedError):
        commit(memory.writer, (old,), KernelCode.SUM, 0, 4000, source, 1.0)
    assert (old.array() == 1).all()


def test_a_held_stripe_does_not_hold_up_free(memory, make):
    region = make(np.ones(10, np.float32))
    attached = Segment.attach(region.segment.name)
    locks = LockFile(memory.name)
    region.try_lock(0, locks)
    memory.free(region)
    region = MappedRegion(memory.name, attached)
    assert region.state == RegionState.FREED
    assert region.array()[0] == 1
    locks.close()
    assert listing(layout.name_of(memory.name, "region.")) == []


def test_the_memory_of_a_freed_region_goes_with_its_last_mapping(memory, make):
    region = make(np.ones(4 << 20, np.uint8))
    attached = Segment.attach(region.segment.name)
    memory.free(region)
    assert attached.bytes[-(4 << 20) :].all()  # no hole, no zeros
    attached.close()
    del region
    gc.collect()
    assert attached.name not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("init", "negative"), [(-0.0, True), (0.0, False), (None, False)])
def test_a_negative_zero_is_an_init_of_its_own(memory, init, negative):
    region = build(memory.name, spec(12), memory.superblock.take_address(12), init)
    assert np.signbit(region.array()).all() == negative
    region.segment.unlink()
