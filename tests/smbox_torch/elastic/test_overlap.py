from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from smbox.errors import WorkerLostError
from smbox.testing.interrupts import interrupted
from smbox_torch import completion
from smbox_torch.elastic import overlap as overlap_module, update_thread
from smbox_torch.elastic.overlap import NoBroadcast, Overlap, ThreadedExchange
from smbox_torch.hybrid.broadcast import HostBroadcast
from smbox_torch.model.flat import FlatParameters
from smbox_torch.optimizer.stats import Recorder
from smbox_torch.world import World


class Worker:
    """Its x is one tensor of three; the center answers with the x that it saw."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.flat = FlatParameters([torch.ones(3)])
        (self.buffer,) = self.flat.buffers
        self.exchange_nbytes = 2 * self.buffer.host.nbytes
        self.gate = threading.Event()
        self.prepared = 0

    def prepare(self) -> list[np.ndarray]:
        self.prepared += 1
        return [self.buffer.load()]

    def request_moves(self, xs, moves) -> None:
        self.gate.wait()
        moves[0].copy_(torch.from_numpy(xs[0]))

    @property
    def x(self) -> list[float]:
        return self.buffer.flat.tolist()


class Clock(threading.local):
    """Stands still in each thread, unless that thread advances it."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Told(NoBroadcast):
    """Notes what is called."""

    def __init__(self, flat) -> None:
        super().__init__(flat)
        self.calls: list[str] = []
        self.fails = False

    def wait_writable(self) -> None:
        self.calls.append("ready")

    def publish(self) -> None:
        self.calls.append("tell")

    def receive(self) -> None:
        self.calls.append("hear")
        if self.fails:
            raise ConnectionError("lost")

    def release(self) -> None:
        self.calls.append("used")


def overlapped(worker: Worker, moves: NoBroadcast | None = None) -> Overlap:
    flat = [worker.buffer]
    exchange = ThreadedExchange(worker)
    return Overlap(flat, moves or NoBroadcast(flat), worker.recorder, exchange)


def test_x_moves_when_it_is_settled_and_once():
    worker = Worker()
    worker.buffer.flat.fill_(5.0)
    overlap = overlapped(worker)
    overlap.begin()
    worker.gate.set()
    overlap.finish()
    assert worker.x == [5.0] * 3
    overlap.settle()
    assert worker.x == [0.0] * 3
    overlap.settle()
    assert worker.x == [0.0] * 3
    assert worker.prepared == 1
    stats = worker.recorder.snapshot()
    assert (stats.exchanges, stats.nbytes) == (1, 2 * 12)
    assert stats.waited_ms > 0
    overlap.close()


def test_time_that_passes_behind_the_caller_is_hidden(monkeypatch):
    worker, clock = Worker(), Clock()
    monkeypatch.setattr("smbox_torch.elastic.update_thread.time", clock)
    monkeypatch.setattr("smbox_torch.elastic.overlap.time", clock)

    def ask(*_: object) -> None:
        clock.now_s += 2.0

    overlap = overlapped(worker)
    worker.request_moves = ask
    overlap.begin()
    clock.now_s += 10.0
    overlap.settle()
    stats = worker.recorder.snapshot()
    assert (stats.exchange_ms, stats.waited_ms, stats.hidden_share) == (2000.0, 0.0, 1.0)
    monkeypatch.setattr("smbox_torch.completion.Completion.wait", ask)
    overlap.begin()
    overlap.settle()  # the caller waits
    assert worker.recorder.snapshot().waited_ms == 2000.0
    overlap.close()


def test_moves_are_ready_told_heard_and_used_in_this_order():
    worker = Worker()
    moves = Told([worker.buffer])
    overlap = overlapped(worker, moves)
    worker.gate.set()
    overlap.begin()
    overlap.begin()
    overlap.settle()
    assert moves.calls == ["ready", "tell", "hear", "used"] * 2
    assert worker.x == [0.0] * 3
    overlap.close()


def test_a_rank_that_only_hears_counts_what_it_waited_for():
    worker = Worker()
    moves = Told([worker.buffer])
    overlap = Overlap([worker.buffer], moves, worker.recorder, None)
    overlap.begin()
    moves.tensors[0].fill_(0.25)
    overlap.settle()
    assert worker.x == [0.75] * 3
    assert moves.calls == ["hear", "used"]
    overlap.load_state([])  # its move is one of the root's state, of no exchange
    overlap.settle()
    assert worker.x == [0.5] * 3
    stats = worker.recorder.snapshot()
    assert (stats.exchanges, stats.nbytes, stats.hidden_ms) == (1, 0, 0.0)
    overlap.close()


def test_moves_that_do_not_come_are_forgotten():
    worker = Worker()
    moves = Told([worker.buffer])
    overlap = Overlap([worker.buffer], moves, worker.recorder, None)
    moves.fails = True
    overlap.begin()
    with pytest.raises(ConnectionError):
        overlap.settle()
    overlap.settle()
    assert worker.x == [1.0] * 3
    assert moves.calls == ["hear", "used"]


def test_a_wait_that_is_interrupted_forgets_nothing(monkeypatch):
    worker = Worker()
    moves = Told([worker.buffer])
    overlap = Overlap([worker.buffer], moves, worker.recorder, None)
    overlap.begin()
    moves.tensors[0].fill_(1.0)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moves, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            overlap.settle()
    assert worker.x == [1.0] * 3
    overlap.settle()
    assert worker.x == [0.0] * 3


def test_after_an_interrupt_at_any_line_of_begin_no_move_is_subtracted_unheard():
    at, is_over = 0, False
    while not is_over:
        at += 1
        worker = Worker()
        moves = Told([worker.buffer])
        moves.tensors[0].fill_(9.0)  # of an earlier exchange
        one = Overlap([worker.buffer], moves, worker.recorder, None)
        is_over = not interrupted(at, one.begin, (overlap_module.__file__,))
        one.settle()
        assert ("hear" in moves.calls) is (worker.x == [-8.0] * 3), at
    assert moves.calls == ["hear", "used"]


def test_a_state_has_the_move_of_an_exchange_whose_begin_was_interrupted_at_any_line():
    at, is_over = 0, False
    while not is_over:
        at += 1
        worker = Worker()
        worker.gate.set()
        one = overlapped(worker)
        files = (overlap_module.__file__, update_thread.__file__, completion.__file__)
        is_over = not interrupted(at, one.begin, files)
        saved = one.state()
        one.settle()
        one.close()
        assert (saved is None) is (worker.x == [1.0] * 3), at
    assert saved is not None
    assert at > 10


def test_a_state_holds_the_moves_and_leaves_them_pending():
    worker, other = Worker(), Worker()
    overlap, later = overlapped(worker), overlapped(other)
    assert overlap.state() is None
    worker.gate.set()
    overlap.begin()
    saved = overlap.state()
    assert saved is not None
    np.testing.assert_array_equal(saved[0], np.ones(3))
    later.load_state(saved)
    saved[0].fill_(9.0)
    overlap.settle()
    later.settle()
    assert worker.x == other.x == [0.0] * 3
    for each in (overlap, later):
        each.close()


def test_loading_replaces_the_exchange_under_way():
    worker = Worker()
    moves = Told([worker.buffer])
    overlap = overlapped(worker, moves)
    worker.gate.set()
    overlap.begin()
    overlap.load_state(None)
    overlap.settle()
    assert worker.x == [1.0] * 3
    assert moves.calls == ["ready", "tell", "used"]
    overlap.close()


def group(world: World, timeout_s: float = 60.0) -> tuple[Overlap, Worker, HostBroadcast]:
    """One rank of a group; the root exchanges."""
    worker = Worker()
    flat = [worker.buffer]
    moves = HostBroadcast("moves", world, flat, timeout_s, sets=2)
    exchange = ThreadedExchange(worker) if world.is_group_root else None
    return Overlap(flat, moves, worker.recorder, exchange), worker, moves


def test_a_group_moves_together_however_fast_its_exchanges_come(run_ranks):
    """Nothing but the moves keeps its ranks together here."""

    def work(world: World) -> list[float]:
        overlap, worker, moves = group(world)
        worker.buffer.flat.fill_(1.0)
        worker.request_moves = lambda xs, told: told[0].copy_(0.375 * torch.from_numpy(xs[0]))
        for _ in range(50):
            overlap.begin()
        overlap.settle()
        overlap.close()
        moves.close()
        return worker.x

    first, second, third = run_ranks(3, work)
    assert first == second == third
    assert 0 < first[0] < 1e-9


def test_a_root_that_does_not_answer_is_given_up(run_ranks):
    answers = threading.Event()

    def work(world: World) -> list[float]:
        overlap, worker, moves = group(world, timeout_s=0.3)
        worker.gate = answers
        overlap.begin()
        if not world.is_group_root:
            with pytest.raises(WorkerLostError, match="rank 0 does not answer"):
                overlap.settle()
            answers.set()
        overlap.settle()
        overlap.close()
        moves.close()
        return worker.x

    assert run_ranks(2, work) == [[0.0] * 3, [1.0] * 3]
