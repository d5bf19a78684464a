from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from smbox.errors import PeerLostError, SegmentError
from smbox.memory import layout, locks, segment
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.locks import LockFile, take_node_lock
from smbox.memory.node_memory import NodeMemory
from smbox.testing.forks import end, in_child
from smbox.testing.regions import commit


def test_a_byte_has_one_holder(pair):
    one, two = pair
    assert one.try_lock(1 << 47)
    assert not two.try_lock(1 << 47)
    assert two.is_held(1 << 47)
    assert two.try_lock((1 << 47) + 1)
    one.close()
    assert two.try_lock(1 << 47)


def test_a_name_that_another_user_has_is_told_with_its_cure(memory, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(segment.os, "open", refuse)
    with pytest.raises(SegmentError, match="cannot open segment"):
        LockFile(memory.name, create=True)  # /dev/shm is closed to this user
    monkeypatch.setattr(segment.os, "geteuid", lambda: -1)
    with pytest.raises(SegmentError, match=r"file of this user .* another --name"):
        LockFile(memory.name, create=True)


def test_closing_lets_go(pair):
    one, two = pair
    assert one.try_lock(3)
    one.close()
    one.close()
    assert two.try_lock(3)


def test_an_open_file_that_is_forgotten_is_closed(memory):
    one, two = LockFile(memory.name), LockFile(memory.name)
    assert one.try_lock(3)
    fd = one.fd
    del one
    assert two.try_lock(3)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    two.close()


def test_the_slot_of_a_writer_that_is_forgotten_is_swept(memory):
    writer = Writer.create(memory.name)
    assert memory.sweep_slots() == 0
    del writer
    assert memory.sweep_slots() == 1


def test_a_forked_child_does_not_keep_its_parents_lock(pair):
    one, two = pair
    assert one.try_lock(5)
    child = in_child(lambda: None)
    one.close()
    is_free = two.try_lock(5)
    end(child)
    assert is_free


def test_a_fork_while_a_thread_opens_a_lock_file_leaves_the_child_none(
    memory, pair, monkeypatch
):
    """The child kept the file, and its locks, as it was not noted among the open ones yet."""
    opened, is_forked, made = threading.Event(), threading.Event(), []
    open_trusted = locks.open_trusted

    def slow(*arguments):
        fd = open_trusted(*arguments)
        opened.set()
        is_forked.wait(0.2)  # the fork waits for this thread, so it comes later
        return fd

    monkeypatch.setattr(locks, "open_trusted", slow)
    thread = threading.Thread(target=lambda: made.append(LockFile(memory.name)))
    thread.start()
    assert opened.wait(60.0)
    child = in_child(lambda: None)
    is_forked.set()
    thread.join()
    assert made[0].try_lock(5)
    made[0].close()
    is_free = pair[1].try_lock(5)
    end(child)
    assert is_free


def test_a_fork_by_a_signal_handler_that_interrupts_an_open_leaves_the_child_none(
    memory, pair, monkeypatch
):
    forked = []
    open_trusted = locks.open_trusted

    def interrupted(*arguments):
        fd = open_trusted(*arguments)
        monkeypatch.undo()
        forked.append(os.fork())  # the child goes on with its parent's call
        return fd

    monkeypatch.setattr(locks, "open_trusted", interrupted)
    reader, writer = os.pipe()
    one = LockFile(memory.name)
    if forked[0] == 0:
        try:
            with pytest.raises(PeerLostError, match="parent"):
                one.try_lock(5)
            LockFile(memory.name).close()
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    assert one.try_lock(5)
    one.close()
    is_free = pair[1].try_lock(5)
    end(forked[0])
    assert is_free


def test_a_child_that_returns_into_a_commit_of_its_parent_loses_it(memory, make):
    """As from a signal handler that forked: it must not change memory as its parent."""
    region, ones = make(np.zeros(4, np.int64)), np.ones(4, np.int64).view(np.uint8)

    def go_on():
        assert memory.writer.locks.id == 0
        assert LockFile(memory.name).try_lock(5)
        with pytest.raises(PeerLostError, match="parent"):
            commit(memory.writer, (region,), KernelCode.SUM, 0, 32, ones)

    end(in_child(go_on))
    assert region.array().tolist() == [0] * 4
    commit(memory.writer, (region,), KernelCode.SUM, 0, 32, ones)
    assert region.array().tolist() == [1] * 4


def test_a_node_without_memory_has_no_locks():
    with pytest.raises(SegmentError, match="locks"):
        LockFile("no-such-node")


def test_the_nodes_lock_is_that_of_the_file_which_others_find(memory, monkeypatch):
    """The lock file is opened while a node stops, and locked after the node has removed it."""
    name = memory.name + "-x"
    ending = NodeMemory.open(name, 64 << 20)
    try_lock = LockFile.try_lock

    def late(locks: LockFile, byte: int) -> bool:
        monkeypatch.undo()
        ending.close(keep=False)
        return try_lock(locks, byte)

    monkeypatch.setattr(LockFile, "try_lock", late)
    begun = NodeMemory.open(name, 64 << 20)
    assert take_node_lock(name) is None  # it holds the lock of the file of this name
    begun.close(keep=False)


def test_a_lock_file_is_not_reached_through_a_link(memory, tmp_path):
    path = segment.DIRECTORY / layout.name_of("linked", "locks")
    path.symlink_to(tmp_path / "made")
    try:
        for create in (False, True):
            with pytest.raises(SegmentError):
                LockFile("linked", create=create)
    finally:
        path.unlink()
    assert not (tmp_path / "made").exists()
