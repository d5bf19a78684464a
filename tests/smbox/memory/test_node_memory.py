from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import LimitError, OutOfMemoryError, RegionFreedError, SegmentError
from smbox.memory import journal, layout, superblock
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import RegionHeader, RegionState, Slot
from smbox.memory.mapped import MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import DIRECTORY, listing
from smbox.testing.dead_writer import leave_open
from smbox.testing.regions import commit


def spec(count: int, name: str = "r") -> RegionSpec:
    return RegionSpec(name, dtypes.by_name("float32"), (count,))


def reopen(memory: NodeMemory) -> None:
    """Close as a kill would, and open the memory again in the same object."""
    memory.close(keep=True)
    take(memory)


def take(memory: NodeMemory) -> None:
    memory.__init__(memory.name, type(memory.superblock).own(memory.name, 64 << 20))


def test_everything_is_found_again(memory, make):
    region = make(np.arange(5, dtype=np.float32))
    memory.channels.claim(b"7" * 16, 0).applied = 3
    uuid, cookie = memory.superblock.uuid, memory.cookie
    reopen(memory)
    assert memory.regions[region.address].array().tolist() == [0, 1, 2, 3, 4]
    assert memory.channels.find(b"7" * 16, 0).applied == 3
    assert (memory.superblock.uuid, memory.cookie) == (uuid, cookie)
    assert memory.superblock.incarnation == 2


def test_memory_that_found_no_room_leaves_nothing(memory, make, monkeypatch):
    make(np.ones(5, np.float32))
    memory.close(keep=True)
    before = listing(f"smbox.{memory.name}")

    def no_room(_name):
        raise OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "create", no_room)
        for name in (f"{memory.name}-new", memory.name):
            with pytest.raises(OutOfMemoryError):
                NodeMemory.open(name, 64 << 20)
    assert listing(f"smbox.{memory.name}") == before  # and all of what was there
    take(memory)


def test_no_address_comes_back_after_a_restart(memory, make):
    region = make(np.ones(5, np.float32))
    memory.free(region)
    reopen(memory)
    assert memory.superblock.take_address(20) > region.address


def test_half_made_and_half_freed_regions_are_swept_at_start(memory, make):
    make(np.ones(5, np.float32), name="unpublished").state = RegionState.BUILDING
    make(np.ones(5, np.float32), name="freed").state = RegionState.FREED
    memory.begin(spec(100)).step()
    reopen(memory)
    assert memory.regions == {}
    assert [n for n in listing(f"smbox.{memory.name}.") if "region" in n or "build" in n] == []


@pytest.mark.parametrize("damage", [(Slot.PROGRESS, 9), (Slot.RING, 77)])
def test_a_slot_that_cannot_be_recovered_stops_neither_start_nor_sweep(
    memory, make, caplog, damage
):
    region = make(np.arange(2, dtype=np.float32))
    slot_id = leave_open(region, first=0, limit=8)
    slot = journal.attach_slot(memory.name, slot_id)
    slot.words(0, Slot.WORDS)[damage[0]] = damage[1]
    others = [Writer.create(memory.name) for _ in range(4)]
    for other in others:
        other.locks.close()
    reopen(memory)
    for other in others:
        assert listing(layout.slot_name(memory.name, other.slot_id)) == []
    assert memory.sweep_slots() == 0
    assert caplog.text.count("cannot be recovered") == 1
    memory.free(memory.regions[region.address])
    assert memory.sweep_slots() == 1


def test_limits_are_told(memory):
    with pytest.raises(LimitError, match="start a node with more"):
        memory.begin(spec(64 << 20))
    with pytest.raises(OutOfMemoryError, match="used up"):
        memory.begin(spec(64 * 1024 * 1024 // 4 - 10_000))


def test_the_slot_of_a_dead_client_is_swept_and_a_living_ones_stays(memory):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        mine = Writer.create(memory.name)
        os.write(writer, b"%x" % mine.slot_id)
        signal.pause()
    os.read(reader, 16)
    alive = Writer.create(memory.name)
    assert memory.sweep_slots() == 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert memory.sweep_slots() == 1
    assert layout.slot_name(memory.name, alive.slot_id) in listing("smbox.")
    alive.close()
    os.close(reader)
    os.close(writer)


def test_a_refused_memory_is_left_alone(memory):
    with pytest.raises(SegmentError, match="running"):
        NodeMemory.open(memory.name, 1)
    assert memory.used_nbytes() > 0


def test_a_slot_that_its_writer_takes_away_meanwhile_stops_no_sweep(memory, monkeypatch):
    monkeypatch.setattr("smbox.memory.journal.slot_ids", lambda node: [5])
    assert memory.sweep_slots() == 0


def test_thousands_of_regions_are_not_counted_at_each_creation(memory, monkeypatch):
    counted = []
    count = memory.used_nbytes
    monkeypatch.setattr(memory, "used_nbytes", lambda: counted.append(1) or count())
    for index in range(60):
        building = memory.begin(spec(10, f"r{index}"))
        while not building.step():
            pass
        region = building.finish(RegionState.LIVE)
        memory.regions[region.address] = region
    assert len(counted) < 25
    with pytest.raises(OutOfMemoryError, match="used up"):
        memory.begin(spec(63 * 1024 * 1024 // 4 - 10_000))
    for region in list(memory.regions.values()):
        memory.free(region)
    memory.begin(spec(50 * 1024 * 1024 // 4)).abandon()
    memory.begin(spec(50 * 1024 * 1024 // 4)).abandon()


@pytest.mark.parametrize("kind", ["node", "region", "channels", "cookie", "locks"])
def test_a_node_adopts_nothing_that_others_may_write(memory, make, kind):
    make(np.ones(4, np.float32))
    (name,) = listing(f"{layout.PREFIX}{memory.name}.{kind}")
    memory.close(keep=True)
    path = DIRECTORY / name
    path.chmod(0o666)
    with pytest.raises(SegmentError, match="not to be trusted"):
        NodeMemory.open(memory.name, 1 << 24)
    assert path.exists()
    path.chmod(0o600)
    take(memory)
    assert len(memory.regions) == 1


def test_a_file_of_another_user_neither_counts_nor_keeps_the_rest(memory, make, monkeypatch):
    make(np.ones(4, np.float32))
    used_nbytes = memory.used_nbytes()
    path = DIRECTORY / f"{layout.PREFIX}{memory.name}.building.0"
    path.touch()
    os.truncate(path, 1 << 40)
    path.chmod(0o666)
    assert memory.used_nbytes() == used_nbytes
    unlink = Path.unlink

    def refusing(each, **options):  # as the system does for others in /dev/shm
        if each == path:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        unlink(each, **options)

    monkeypatch.setattr(Path, "unlink", refusing)
    memory.close(keep=False)
    assert listing(layout.name_of(memory.name)) == [path.name]
    take(memory)
    unlink(path)


def killed_in_its_stop(name: str, after: int) -> bool:
    """Stop a node in a child that dies after it removed some names; False: it survived."""
    child = os.fork()
    if child == 0:
        memory, done = NodeMemory.open(name, 64 << 20), []
        unlink = superblock.unlink
        if after < 0:  # before the stop is noted
            superblock.OwnedSuperblock.mark_stopping = lambda _: os._exit(1)

        def counted(segment: str) -> None:
            if len(done) == after:
                os._exit(1)
            unlink(segment)
            done.append(segment)

        superblock.unlink = counted
        memory.close(keep=False)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


@pytest.mark.parametrize("after", [-1, 0, 1, 2, 3, 4])
def test_a_stop_that_is_killed_leaves_all_regions_or_none(memory, make, after):
    regions = [make(np.ones(4, np.float32), name=f"r{index}") for index in range(3)]
    uuid = memory.superblock.uuid
    mapped = [MappedRegion.attach(memory.name, region.offset) for region in regions]
    memory.close(keep=True)
    assert killed_in_its_stop(memory.name, after)
    take(memory)
    assert len(memory.regions) == (3 if after < 0 else 0)
    assert (memory.superblock.uuid == uuid) == (after < 0)
    state = RegionState.LIVE if after < 0 else RegionState.FREED
    assert [region.state for region in mapped] == [state] * 3


def hurt(path: Path, how: str) -> None:
    """Damage a file of /dev/shm."""
    if how == "unlinked":
        path.unlink()
    elif how == "open to all":
        path.chmod(0o666)
    else:
        os.truncate(path, 100)


@pytest.mark.parametrize("how", ["unlinked", "open to all", "truncated"])
@pytest.mark.parametrize("kind", ["node", "region"])
def test_a_stop_reaches_clients_whatever_became_of_a_name(memory, make, kind, how):
    regions = [make(np.ones(4, np.float32), name=f"r{index}") for index in range(2)]
    mapped = [MappedRegion.attach(memory.name, region.offset) for region in regions]
    writer = Writer.create(memory.name)
    hurt(DIRECTORY / listing(f"smbox.{memory.name}.{kind}")[0], how)
    memory.close(keep=False)
    for region in mapped[how == "truncated" and kind == "region" :]:  # its pages are gone
        with pytest.raises(RegionFreedError, match="or its memory node was stopped"):
            commit(writer, (region,), KernelCode.SUM, 0, 16, np.ones(16, np.uint8), 1.0)
    writer.locks.close()
    assert listing(f"smbox.{memory.name}.") == []
    with pytest.raises(RegionFreedError, match="or its memory node was stopped"):
        MappedRegion.attach(memory.name, regions[0].offset)
    take(memory)


def test_a_refused_start_deletes_nothing_that_it_found(memory, make):
    kept = [make(np.ones(4, np.float32), name=f"r{index}") for index in range(2)]
    path = DIRECTORY / kept[1].segment.name
    kept[1].words[RegionHeader.FORMAT] = 99
    memory.close(keep=True)
    (DIRECTORY / layout.name_of(memory.name, "node")).unlink()
    before = listing(f"smbox.{memory.name}.")
    with pytest.raises(SegmentError, match="another format"):
        NodeMemory.open(memory.name, 64 << 20)
    assert listing(f"smbox.{memory.name}.") == before
    path.unlink()
    take(memory)
    assert len(memory.regions) == 1


@pytest.mark.parametrize("nbytes", [1, 90])
@pytest.mark.parametrize("kind", ["node", "region", "channels", "cookie"])
def test_a_file_that_was_cut_is_told(memory, make, kind, nbytes):
    make(np.ones(4, np.float32))
    memory.close(keep=True)
    (name,) = listing(f"smbox.{memory.name}.{kind}")
    os.truncate(DIRECTORY / name, nbytes)
    with pytest.raises(SegmentError, match="damaged"):
        NodeMemory.open(memory.name, 64 << 20)
    superblock.remove_all(memory.name)
    assert listing(f"smbox.{memory.name}.") == []
    take(memory)
