from __future__ import annotations

import os
import secrets

import numpy as np
import pytest

from smbox.errors import OutOfMemoryError, SegmentError
from smbox.memory import layout, segment, superblock
from smbox.memory.layout import Superblock
from smbox.memory.node_memory import NodeMemory
from smbox.memory.segment import Segment, listing
from smbox.memory.superblock import NodeOwnedError, OwnedSuperblock


def test_one_owner_at_a_time(memory):
    with pytest.raises(NodeOwnedError, match=str(os.getpid())):
        OwnedSuperblock.own(memory.name, 1)


def test_no_address_comes_twice(memory):
    block = memory.superblock
    first = block.take_address(0)
    second = block.take_address(5000)
    third = block.take_address(1)
    assert (second - first, third - second) == (4096, 8192)


def test_another_memory_of_a_name_has_other_addresses(memory):
    first = memory.superblock.first_address
    assert memory.superblock.take_address(1) == first
    assert first % (1 << 30) == 0
    assert 0 < first < 1 << 44
    memory.close(keep=False)
    memory.__init__(memory.name, OwnedSuperblock.own(memory.name, 64 << 20))
    assert memory.superblock.first_address != first


def test_addresses_end(memory):
    memory.superblock.words[Superblock.HIGH_WATER] = (1 << 48) - 4096
    with pytest.raises(OutOfMemoryError, match="addresses"):
        memory.superblock.take_address(4096)


def test_a_start_without_room_leaves_nothing(monkeypatch):
    name = f"t{secrets.token_hex(4)}"
    monkeypatch.setattr(segment, "room_nbytes", lambda: 0)
    with pytest.raises(OutOfMemoryError, match="no room"):
        OwnedSuperblock.own(name, 1)
    assert listing(f"smbox.{name}.") == []


HASH_BIT = 1 << 40  # of the layout's hash


@pytest.mark.parametrize(
    ("word", "changed", "message"),
    [
        (Superblock.MAGIC, 1, "not a superblock"),
        (Superblock.FORMAT, 1, "another format"),
        (Superblock.FORMAT, HASH_BIT, "another format"),
    ],
)
def test_foreign_memory_is_refused_and_stays(memory, word, changed, message):
    words = Segment.attach(layout.name_of(memory.name, "node")).words(0, 16)
    memory.superblock.locks.close()
    words[word] ^= np.uint64(changed)
    found = listing(f"smbox.{memory.name}.")
    with pytest.raises(SegmentError, match=message):
        OwnedSuperblock.own(memory.name, 1)
    assert listing(f"smbox.{memory.name}.") == found
    words[word] ^= np.uint64(changed)
    assert memory.superblock.memory_nbytes == 64 << 20


@pytest.mark.parametrize("is_by_owner", [False, True])
def test_nobody_begins_before_the_memory_of_a_stop_is_gone(
    memory, make, monkeypatch, is_by_owner
):
    region, left = make(np.ones(5, np.float32)), []
    unlink = superblock.unlink

    def refused(name: str) -> None:
        assert region.state == layout.RegionState.FREED
        assert left or superblock.is_stopping(memory.name)
        with pytest.raises(NodeOwnedError):
            NodeMemory.open(memory.name, 64 << 20)
        unlink(name)
        left.append([name.rpartition(".")[2] for name in listing(f"smbox.{memory.name}.")])

    monkeypatch.setattr(superblock, "unlink", refused)
    if is_by_owner:
        memory.close(keep=False)
    else:
        superblock.remove_all(memory.name)
    assert left[-3:] == [["locks", "node"], ["locks"], []]
