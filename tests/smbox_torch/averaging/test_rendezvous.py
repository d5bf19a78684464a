from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from smbox.errors import StepMismatchError, WorkerLostError
from smbox.memory import process
from smbox_torch.averaging import rendezvous
from smbox_torch.averaging.rendezvous import ROW_WORDS, Rendezvous, Word

LONG_S = 60.0


def pair(timeout_s: float = LONG_S) -> tuple[Rendezvous, Rendezvous, np.ndarray]:
    rows = np.zeros((2, ROW_WORDS), np.uint64)
    first, second = (
        Rendezvous(rows, rank, timeout_s=timeout_s, first_rank=4) for rank in range(2)
    )
    first.enter()
    second.enter()
    return first, second, rows


@pytest.fixture
def other():
    """A process that does nothing until it is killed."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()
    child.stdin.close()


def put(rows: np.ndarray, rank: int, pid: int) -> None:
    rows[rank, Word.PID] = pid
    rows[rank, Word.STARTED] = process.start_time(pid)


def test_a_wait_is_over_when_the_last_has_come():
    first, second, _ = pair()
    first.raise_to(0, 1)
    assert not first.reached(0, 1)
    waiter = threading.Thread(target=first.wait, args=(0, 1))
    waiter.start()
    second.raise_to(0, 1)
    waiter.join(LONG_S)
    assert not waiter.is_alive()
    assert first.counters(0) == [1, 1]
    assert first.counters(1) == [0, 0]


def test_a_fence_precedes_each_store_and_follows_each_load(monkeypatch):
    rows = np.zeros((2, ROW_WORDS), np.uint64)
    column = rows[:, Word.COUNTERS + 1]
    seen = []

    def fence() -> None:
        seen.append(column.tolist())
        column[:] += 10

    native = SimpleNamespace(short=SimpleNamespace(smbox_fence=fence))
    monkeypatch.setattr(rendezvous.library, "load", lambda: native)
    first = Rendezvous(rows, 0, timeout_s=LONG_S)
    first.raise_to(1, 5)
    assert (seen, column.tolist()) == ([[0, 0]], [5, 10])
    assert first.counters(1) == [5, 10]
    assert (seen[1:], column.tolist()) == ([[5, 10]], [15, 20])
    assert not first.reached(1, 20)
    assert len(seen) == 3


def test_a_rank_is_present_only_with_its_start_time(monkeypatch):
    rows, seen = np.zeros((1, ROW_WORDS), np.uint64), []
    native = SimpleNamespace(
        short=SimpleNamespace(smbox_fence=lambda: seen.append(rows[0].tolist()))
    )
    monkeypatch.setattr(rendezvous.library, "load", lambda: native)
    Rendezvous(rows, 0, timeout_s=LONG_S).enter()
    assert rows[0, Word.PID] == os.getpid()
    assert all(row[Word.STARTED] or not row[Word.PID] for row in seen)


def test_a_rank_that_arrives_and_ends_during_a_check_is_not_lost(monkeypatch):
    first, second, _ = pair()
    checked = []
    monkeypatch.setattr(rendezvous, "POLL_S", 0.0)
    monkeypatch.setattr(process, "is_alive", lambda *_: checked.append(True) or True)

    def lags(rank: int) -> bool:
        lagged = first.counters(0)[rank] < 1
        second.raise_to(0, 1)
        second.leave()
        return lagged

    first.wait_until(lambda: bool(checked), lags)


def test_a_dead_rank_is_named_long_before_the_timeout(other):
    first, _, rows = pair()
    put(rows, 1, other.pid)
    other.kill()
    other.wait()
    with pytest.raises(WorkerLostError, match="rank 5 died") as caught:
        first.wait(0, 1)
    assert caught.value.facts["rank"] == 5


def test_a_pid_that_another_process_has_now_is_a_dead_rank():
    first, _, rows = pair()
    rows[1, Word.STARTED] += 1
    with pytest.raises(WorkerLostError, match="rank 5 died"):
        first.wait(0, 1)


def test_a_stopped_rank_is_given_up_after_the_timeout(other):
    first, _, rows = pair(timeout_s=0.2)
    put(rows, 1, other.pid)
    os.kill(other.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, other.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(WorkerLostError, match="rank 5 does not answer: it is stopped"):
        first.wait(0, 1)


def test_a_rank_that_never_came_is_given_up_after_the_timeout():
    first, _, rows = pair(timeout_s=0.2)
    rows[1] = 0
    with pytest.raises(WorkerLostError, match="rank 5 never came"):
        first.wait(0, 1)


def test_a_rank_that_left_is_named():
    first, second, _ = pair()
    second.leave()
    with pytest.raises(WorkerLostError, match="rank 5 has left"):
        first.wait(0, 1)


def test_a_forked_child_does_not_leave_for_its_parent(monkeypatch):
    first, second, _ = pair(timeout_s=0.2)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        second.leave()
    with pytest.raises(WorkerLostError, match="rank 5 does not answer"):
        first.wait(0, 1)


def test_a_rank_that_did_its_part_may_be_gone():
    first, second, _ = pair()
    first.raise_to(2, 3)
    second.raise_to(2, 3)
    second.leave()
    first.wait(2, 3)


def test_one_rank_is_waited_for_and_the_others_are_not():
    first, second, _ = pair()
    second.raise_to(1, 5)
    second.leave()
    first.wait_for(1, 1, 5)
    with pytest.raises(WorkerLostError, match="rank 5 has left"):
        first.wait_for(1, 1, 6)


def test_one_rank_is_waited_for_while_another_has_left(monkeypatch):
    rows, checks = np.zeros((3, ROW_WORDS), np.uint64), []
    first, second, third = (Rendezvous(rows, rank, timeout_s=LONG_S) for rank in range(3))
    for each in first, second, third:
        each.enter()
    third.leave()

    def is_alive(*_: object) -> bool:
        checks.append(1)
        if len(checks) > 2:  # the two others were checked once
            second.raise_to(0, 1)
            second.leave()
        return True

    monkeypatch.setattr(rendezvous, "POLL_S", 0.0)
    monkeypatch.setattr(process, "is_alive", is_alive)
    first.wait_for(1, 0, 1)
    assert len(checks) > 2


def test_the_others_name_whom_the_first_has_blamed():
    rows = np.zeros((3, ROW_WORDS), np.uint64)
    ranks = [Rendezvous(rows, rank, timeout_s=LONG_S) for rank in range(3)]
    for rank in ranks:
        rank.enter()
    ranks[2].leave()
    for waiting in ranks[:2]:
        with pytest.raises(WorkerLostError, match="rank 2 has left"):
            waiting.wait(0, 1)
        waiting.leave()


def test_a_rank_that_finished_is_no_lost_rank_and_all_others_say_so():
    rows = np.zeros((3, ROW_WORDS), np.uint64)
    ranks = [Rendezvous(rows, rank, timeout_s=LONG_S, first_rank=4) for rank in range(3)]
    for rank in ranks:
        rank.enter()
    ranks[1].leave(steps=7)
    ranks[1].leave()
    for waiting in (ranks[0], ranks[2]):
        with pytest.raises(StepMismatchError, match="rank 5 finished after 7 steps"):
            waiting.wait(0, 1)
        waiting.leave()


def test_a_rank_that_skipped_a_step_is_named_by_all():
    first, second, _ = pair()
    with pytest.raises(StepMismatchError, match="rank 5 skipped"):
        first.give_up_skipped([1], [3, 2])
    with pytest.raises(StepMismatchError, match="rank 5 skipped"):
        second.wait(0, 1)


def test_a_rank_that_left_just_before_its_end_has_left_and_not_died(monkeypatch):
    first, second, _ = pair()

    def leave_and_end(*_: int) -> bool:
        second.leave()
        return False

    monkeypatch.setattr(process, "is_alive", leave_and_end)
    with pytest.raises(WorkerLostError, match="rank 5 has left"):
        first.wait(0, 1)
