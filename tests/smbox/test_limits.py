"""A process that can start no more threads gets a SystemLimitError, and loses nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest
from zmq.utils.garbage import gc

import smbox
from smbox.errors import SystemLimitError
from smbox.lease import Lease
from smbox.testing.interrupts import interrupted
from smbox.transports import zeromq
from smbox.transports.zeromq import start_frame_thread

pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.fixture
def refuse(monkeypatch):
    """Return a function: from now on, the n-th start of a thread of this name fails, once."""
    start = threading.Thread.start

    def refuse(name: str, nth: int = 0) -> None:
        starts = iter(range(nth + 1))

        def refusing(thread):
            if name in thread.name and next(starts, None) == nth:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refusing)

    return refuse


@pytest.mark.parametrize("nth", [0, 3])
def test_zeromq_is_not_started_without_threads(refuse, nth):
    refuse("smbox-limits", nth)
    with pytest.raises(SystemLimitError, match=r"ulimit -u, -v, or pids\.max"):
        start_frame_thread()


def test_a_thread_of_pyzmq_that_cannot_start_is_told(refuse, monkeypatch):
    monkeypatch.setattr(gc, "refs", gc.refs)
    monkeypatch.setattr(gc, "thread", None)
    refuse("Thread-")
    with pytest.raises(SystemLimitError, match="ulimit -u"):
        start_frame_thread()


def test_an_interrupt_of_the_start_leaves_no_thread_that_waits():
    files, ends = (zeromq.__file__, contextlib.__file__), []

    def interrupt_each() -> None:
        at = 1
        while interrupted(at, start_frame_thread, files):
            at += 1
        ends.append(at)

    caller = threading.Thread(target=interrupt_each, daemon=True)
    caller.start()
    caller.join(20.0)
    assert ends
    assert ends[0] > 20
    for thread in threading.enumerate():
        if thread.name == "smbox-limits":
            thread.join(20.0)
            assert not thread.is_alive()


def test_a_member_without_a_heartbeat_takes_no_rank(box, refuse):
    refuse("smbox-heartbeat")
    with pytest.raises(SystemLimitError, match="ulimit -u"):
        smbox.join(box, "run")
    with smbox.join(box, "run") as member:
        assert member.rank == 0


def test_a_heartbeat_that_cannot_renew_warns(box, monkeypatch, caplog):
    def full(*_args, **_more):
        raise SystemLimitError("too many open files: raise ulimit -n")

    with smbox.join(box, "run") as member:
        monkeypatch.setattr(Lease, "renew", full)
        member.beat()
        monkeypatch.undo()
    assert "cannot renew a lease: too many open files" in caplog.text


def test_a_holder_without_a_heartbeat_takes_no_lock(box, refuse):
    refuse("smbox-heartbeat")
    lock = box.lock("l")
    with pytest.raises(SystemLimitError, match="ulimit -u"):
        lock.acquire()
    with lock:
        assert lock.is_held


def test_a_node_without_a_watcher_is_stopped(refuse):
    refuse("smbox-local")
    with pytest.raises(SystemLimitError, match="ulimit -u"):
        smbox.local(memory="4MiB")


def test_a_node_is_restarted_when_a_thread_can_be_started_again(refuse):
    with smbox.local(memory="4MiB", timeout_s=60.0) as box:
        counter = box.counter("c")
        counter.add(1)
        refuse("Thread-")  # that of the timer
        os.kill(box.stats()["pid"], signal.SIGKILL)
        counter.add(1)
        assert counter.value == 2
