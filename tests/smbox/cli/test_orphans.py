"""``smbox gc`` removes the memory of dead owners, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from smbox.cli import orphans
from smbox.errors import ConfigError, SystemLimitError
from smbox.memory import layout, process, segment, superblock
from smbox.memory.channels import Answers
from smbox.memory.journal import Writer
from smbox.memory.layout import LockByte, Superblock
from smbox.memory.locks import LockFile
from smbox.memory.node_memory import NodeMemory
from smbox.memory.segment import Segment
from smbox.testing.few_files import failing_open


@pytest.fixture
def node() -> Iterator[str]:
    name = f"t{secrets.token_hex(6)}"
    yield name
    for left in segment.listing(layout.name_of(name)):
        segment.unlink(left)


def make(
    node: str,
    pid: int,
    started: int,
    magic: int = Superblock.MAGIC_VALUE,
    version: int = layout.FORMAT,
) -> None:
    LockFile(node, create=True).close()
    superblock = Segment.create(layout.name_of(node, "node"), Superblock.NBYTES)
    words = superblock.words(0, 16)
    words[[Superblock.MAGIC, Superblock.FORMAT]] = magic, version
    words[[Superblock.PID, Superblock.PID_STARTED]] = pid, started
    Segment.create(layout.region_name(node, 4096), 8192).close()


def find(node: str) -> orphans.NodeSegments:
    return next(memory for memory in orphans.survey() if memory.node == node)


@pytest.fixture
def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_memory_of_a_living_owner_is_alive(node):
    make(node, *process.identity())
    found = find(node)
    assert (found.state, found.owner_pid, len(found.segments)) == ("alive", os.getpid(), 3)
    assert found.nbytes == Superblock.NBYTES + 8192
    assert not orphans.remove(found)
    assert find(node) == found


def test_memory_of_a_dead_owner_is_removed(node, dead_pid):
    make(node, dead_pid, 12345)
    found = find(node)
    assert (found.state, found.owner_pid) == ("dead", dead_pid)
    assert orphans.remove(replace(found, state="kept"))  # its next node was killed since
    assert segment.listing(layout.name_of(node)) == []


def test_memory_with_a_segment_of_another_user_is_kept(node, dead_pid, monkeypatch):
    make(node, dead_pid, 12345)
    before, late = find(node), layout.region_name(node, 8192)
    Segment.create(late, 4096).close()
    monkeypatch.setattr(segment, "is_untrusted", late.__eq__)
    assert find(node).state == "unknown"
    assert not any(map(orphans.remove, (find(node), before)))


def test_memory_in_which_a_client_still_works_is_kept(node, dead_pid):
    make(node, dead_pid, 12345)
    writer = Writer.create(node)
    found = find(node)
    assert found.state == "in use"
    assert not orphans.remove(found)
    doomed = replace(found, state="dead")  # it started after the survey
    assert not orphans.remove(doomed)
    assert find(node) == found
    writer.close()
    assert orphans.remove(find(node))


def test_a_pid_that_is_used_again_protects_nothing(node):
    pid, started = process.identity()
    make(node, pid, started + 1)
    assert find(node).state == "dead"


def test_memory_that_was_left_on_purpose_goes_only_when_asked_for(node, capsys, monkeypatch):
    NodeMemory.open(node, 64 << 20).close(keep=True)
    mine = find(node)
    assert (mine.state, mine.owner_pid) == ("kept", 0)
    monkeypatch.setattr(orphans, "survey", lambda: [mine])
    orphans.gc(yes=True)
    assert "keep" in capsys.readouterr().out
    assert find(node) == mine
    killed = orphans.NodeSegments(f"{node}-killed", (), 0, 1, "dead")
    monkeypatch.setattr(orphans, "survey", lambda: [mine, killed])
    orphans.gc(kept=True)
    assert capsys.readouterr().out.count("would remove") == 2
    orphans.gc(yes=True, kept=True)
    assert segment.listing(layout.name_of(node)) == []


def test_kept_memory_is_not_looked_for_at_an_address():
    with pytest.raises(ConfigError, match="leave out --address"):
        orphans.gc(kept=True, address="tcp://127.0.0.1:1")


def test_memory_of_a_node_that_failed_is_dead(node):
    command = ["env", "PYTHONUNBUFFERED=", sys.executable, "-P", "-m", "memnode"]
    command += ["--name", node, "--bind", "tcp://127.0.0.1:0", "--memory", "4MiB"]
    with open("/dev/full", "w") as full:
        failed = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert failed.returncode == 1
    assert "cannot write to standard output" in failed.stderr
    mine = find(node)
    assert mine.state == "dead"
    assert orphans.remove(mine)


def test_memory_that_is_just_being_opened_is_kept(node, dead_pid):
    make(node, dead_pid, 12345)
    before = find(node)
    locks = LockFile(node)
    try:
        assert locks.try_lock(LockByte.NODE)
        assert find(node).state == "alive"
        assert not orphans.remove(before)
    finally:
        locks.close()
    assert find(node) == before


@pytest.mark.parametrize(
    ("magic", "version"),
    [
        (0, layout.FORMAT),
        (7, layout.FORMAT),
        (Superblock.MAGIC_VALUE, layout.FORMAT + 1),
        (Superblock.MAGIC_VALUE, layout.FORMAT ^ 1 << 40),  # another hash
    ],
)
def test_memory_without_a_superblock_of_ours_is_kept(node, dead_pid, magic, version):
    make(node, dead_pid, 12345, magic, version)
    found = find(node)
    assert found.state == "unknown"
    assert not orphans.remove(found)
    assert find(node) == found


def test_segments_without_a_node_are_unknown(node):
    Segment.create(layout.region_name(node, 4096), 4096).close()
    assert (find(node).state, find(node).owner_pid) == ("unknown", 0)


@pytest.mark.parametrize("part", ["channels", "cookie", "slot.1", "ring.1", "building.1"])
def test_what_is_useless_without_a_node_is_dead(node, part):
    Segment.create(layout.name_of(node, part), 4096).close()
    assert find(node).state == "dead"


def killed_in_its_stop(node: str, after: int) -> bool:
    """Open a memory in a child that dies while it removes it; False if it removed all."""
    child = os.fork()
    if child == 0:
        memory = NodeMemory.open(node, 64 << 20)
        Answers(memory.channels.claim(b"7" * 16, 0)).block_for(8)
        unlink, done = superblock.unlink, []

        def counted(name: str) -> None:
            unlink(name)
            done.append(name)
            if len(done) == after:
                os._exit(1)

        superblock.unlink = counted
        memory.close(keep=False)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


def test_what_a_stop_leaves_that_was_killed_is_collected(node):
    kills = 0
    while killed_in_its_stop(node, kills + 1):
        kills += 1
        if segment.listing(layout.name_of(node)):
            assert find(node).state == "dead"
            assert orphans.remove(find(node))
        assert segment.listing(layout.name_of(node)) == []
    assert kills == 5  # channels, cookie, ring, superblock, locks


def test_a_removal_is_ended_though_clients_still_map_it(node, dead_pid):
    make(node, dead_pid, 12345)
    writer = Writer.create(node)
    assert find(node).state == "in use"
    superblock = Segment.attach(layout.name_of(node, "node"))
    superblock.words(0, 16)[Superblock.FORMAT] = layout.FORMAT
    superblock.words(0, 16)[Superblock.STOPPING] = 1
    assert find(node).state == "dead"
    assert orphans.remove(find(node))
    writer.locks.close()
    assert segment.listing(layout.name_of(node)) == []


def test_memory_that_another_node_took_over_since_the_survey_is_kept(node, dead_pid):
    make(node, dead_pid, 12345)
    found = find(node)
    assert orphans.remove(found)
    NodeMemory.open(node, 64 << 20).close(keep=True)
    assert not orphans.remove(found)
    assert orphans.remove(find(node))


def test_a_collection_leaves_a_node_alone_that_begins_meanwhile(node, dead_pid, monkeypatch):
    """Another gc removes the lock file that this one opened; then a node starts."""
    make(node, dead_pid, 12345)
    found = find(node)
    try_lock, begun = LockFile.try_lock, []

    def late(locks: LockFile, byte: int) -> bool:
        monkeypatch.undo()
        assert orphans.remove(found)
        begun.append(NodeMemory.open(node, 64 << 20))
        return try_lock(locks, byte)

    monkeypatch.setattr(LockFile, "try_lock", late)
    assert not orphans.remove(found)
    assert find(node).state == "alive"
    begun[0].close(keep=False)


def test_gc_shows_and_keeps_without_yes(node, dead_pid, capsys):
    make(node, dead_pid, 12345)
    orphans.gc()
    line = next(row for row in capsys.readouterr().out.splitlines() if node in row)
    assert "dead" in line
    assert "would remove" in line
    assert find(node).state == "dead"


def test_gc_removes_with_yes_and_tells_programs(node, dead_pid, capsys, monkeypatch):
    make(node, dead_pid, 12345)
    mine = find(node)
    monkeypatch.setattr(orphans, "survey", lambda: [mine])  # not the memory of other tests
    orphans.gc(yes=True, json=True)
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["node"], told["removed"], told["owner_pid"]) == (node, True, dead_pid)
    assert segment.listing(layout.name_of(node)) == []


def test_gc_tells_only_what_it_removed(node, dead_pid, capsys, monkeypatch):
    """A node may have started under this name since the survey."""
    make(node, dead_pid, 12345)
    mine = find(node)
    monkeypatch.setattr(orphans, "survey", lambda: [mine])
    monkeypatch.setattr(orphans, "remove", lambda _: False)
    orphans.gc(yes=True, json=True)
    assert [told["removed"] for told in json.loads(capsys.readouterr().out)] == [False]
    orphans.gc(yes=True)
    assert "would remove" not in capsys.readouterr().out


def test_gc_that_can_open_too_few_files_removes_nothing_in_use(node, dead_pid, monkeypatch):
    make(node, dead_pid, 12345)
    writer, before = Writer.create(node), segment.listing(layout.name_of(node))
    mine, listing = find(node), segment.listing
    monkeypatch.setattr(
        segment, "listing", lambda prefix: [x for x in listing(prefix) if f".{node}." in x]
    )
    for nth in itertools.count():
        with failing_open(nth) as failure, contextlib.suppress(SystemLimitError):
            assert orphans.survey() == [mine]
            assert not orphans.remove(replace(mine, state="dead"))
        assert listing(layout.name_of(node)) == before
        if not failure.has_struck:
            break
    writer.close()
