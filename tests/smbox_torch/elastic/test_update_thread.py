from __future__ import annotations

import subprocess
import threading
from types import SimpleNamespace

import pytest

from smbox.errors import ConfigError, SystemLimitError
from smbox.testing.interrupts import interrupted_at_return
from smbox_torch.completion import Completion
from smbox_torch.elastic.center_add import CenterAdd
from smbox_torch.elastic.update_thread import UpdateThread
from smbox_torch.optimizer.stats import Recorder


class Clock(threading.local):
    """Stands still in each thread, unless that thread advances it."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_work_runs_beside_the_caller_until_finish():
    thread, gate, done = UpdateThread(), threading.Event(), []
    thread.begin(lambda: (gate.wait(), done.append(threading.get_ident()))[0])
    assert thread.busy
    assert done == []
    gate.set()
    thread.finish()
    assert not thread.busy
    assert done
    assert done[0] != threading.get_ident()
    assert thread.took_s > 0
    thread.close()


def test_what_the_work_raises_is_raised_by_finish_once():
    thread = UpdateThread()
    thread.begin(lambda: int("none"))
    with pytest.raises(ValueError, match="none"):
        thread.finish()
    thread.finish()
    thread.close()


def test_an_interrupted_wait_can_be_taken_up_again(monkeypatch):
    thread, gate, done = UpdateThread(), threading.Event(), []
    thread.begin(lambda: (gate.wait(), done.append(1))[0])

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Completion, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.finish()
    assert thread.busy
    gate.set()
    thread.finish()
    assert done == [1]
    thread.close()


def test_an_interrupt_at_the_end_of_any_call_blocks_neither_thread():
    ends = []

    def interrupt_each() -> None:
        at, is_over = 0, False
        while not is_over:
            at += 1
            thread, done = UpdateThread(), []

            def exchange(thread=thread, done=done) -> None:
                thread.begin(lambda: done.append(1))
                thread.finish()

            is_over = not interrupted_at_return(at, exchange)
            thread.finish()
            thread.begin(lambda done=done: done.append(2))
            thread.finish()
            thread.close()
            ends.append(done)

    caller = threading.Thread(target=interrupt_each, daemon=True)
    caller.start()
    caller.join(20.0)
    assert not caller.is_alive()
    assert len(ends) > 3
    assert all(done in ([1, 2], [2]) for done in ends)
    assert ends[-1] == [1, 2]


def test_after_its_end_nothing_begins():
    thread, done = UpdateThread(), []
    thread.begin(lambda: done.append(1))
    thread.close()
    thread.finish()
    with pytest.raises(ConfigError, match="closed"):
        thread.begin(lambda: done.append(2))
    assert not thread.busy
    assert done == [1]


def test_a_thread_that_is_never_closed_ends_with_its_owner():
    class Owner:
        def __init__(self) -> None:
            self.thread = UpdateThread()

        def work(self) -> None:
            pass

    before = {*threading.enumerate()}
    owner = Owner()
    (thread,) = {*threading.enumerate()} - before
    owner.thread.begin(owner.work)
    owner.thread.finish()
    del owner
    thread.join(20.0)
    assert not thread.is_alive()


def test_the_exit_of_python_waits_for_the_task(preloaded: str):
    program = """
import os, time
from smbox_torch.elastic.update_thread import UpdateThread
thread = UpdateThread()
thread.begin(lambda: (time.sleep(0.1), os.write(1, b"done")))
"""
    done = subprocess.run([preloaded, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"done", b"")


def test_there_is_room_for_one():
    thread = UpdateThread()
    thread.begin(lambda: None)
    with pytest.raises(AssertionError):
        thread.begin(lambda: None)
    thread.close()


def test_what_could_not_begin_never_runs(monkeypatch):
    def no_thread(_thread):
        raise RuntimeError("can't start new thread")

    done = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(SystemLimitError, match="ulimit -u"):
            UpdateThread().begin(lambda: done.append(1))
    thread = UpdateThread()
    thread.begin(lambda: done.append(2))
    thread.finish()
    assert done == [2]
    thread.close()


def test_the_part_of_an_add_for_which_the_caller_waited_is_not_hidden(monkeypatch):
    clock, recorder = Clock(), Recorder()
    monkeypatch.setattr("smbox_torch.elastic.update_thread.time", clock)
    center = SimpleNamespace(behind=lambda: 0)

    def pass_s(seconds: float) -> None:
        clock.now_s += seconds

    steps = SimpleNamespace(add=lambda: pass_s(2.0), center=center, unsent=[])
    adding = CenterAdd(steps, recorder, is_hidden=True)
    adding.begin()
    pass_s(10.0)  # the caller computes
    wait = Completion.wait
    monkeypatch.setattr(Completion, "wait", lambda ended: (wait(ended), pass_s(0.5)))
    adding.finish()
    assert recorder.exchange_s == 1.5
    adding.close()


def test_a_close_whose_add_failed_ends_the_thread():
    before = threading.active_count()
    steps = SimpleNamespace(add=lambda: int("none"), unsent=[])
    adding = CenterAdd(steps, Recorder(), is_hidden=True)
    adding.begin()
    with pytest.raises(ValueError, match="none"):
        adding.close()
    assert threading.active_count() == before
