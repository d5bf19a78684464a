"""Local requests go on exactly once, wherever an interrupt or a held stripe stopped them."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import RequestTimeoutError
from smbox.memory import accel
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.reading import read_piece
from smbox.paths import local_work
from smbox.paths.base import Operation
from smbox.paths.local_work import LocalChange
from smbox.paths.sinks import MoveSink, OldSink
from smbox.testing.solo import solo_box

COUNT = 2 * STRIPE_NBYTES // 8 + 4
PASSED_S = 0.0


class Interrupts:
    """Stands for a function; the calls in ``at`` are interrupted before or after it."""

    def __init__(self, function, *at, after):
        self.function, self.at, self.after, self.calls = function, at, after, 0

    def __call__(self, *arguments, **named):
        self.calls += 1
        if self.calls in self.at and not self.after:
            raise KeyboardInterrupt
        found = self.function(*arguments, **named)
        if self.calls in self.at:
            raise KeyboardInterrupt
        return found


def nothing_now(writer, region, operation, sink, at):
    return at


@pytest.fixture
def region(box):
    return box.create("some", shape=(COUNT,), dtype="float64", init=1.0)


def begin(box, region, sink, source, kernel=KernelCode.SUM, scale=1):
    path = box._paths.data()
    operation = Operation("test", kernel, scale, 0, region.nbytes, source.view(np.uint8))
    lane = path._lane()
    return LocalChange(lane, path._map(region.info), operation, sink, 0), lane


def drive(work, lane):
    """Run a request to its end as a caller does who tries again after each interrupt."""
    lane.queue.append(work)
    interrupts = 0
    while not work.is_done:
        try:
            lane.run(work)
        except KeyboardInterrupt:
            interrupts += 1
    return interrupts


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [(1,), (2,), (1, 2, 3)])
@pytest.mark.parametrize("name", ["commit", "commit_now"])
def test_an_interrupted_call_is_neither_lost_nor_doubled(
    box, region, monkeypatch, name, at, after
):
    accel.load()
    if name == "commit":
        monkeypatch.setattr(local_work, "commit_now", nothing_now)
    script = Interrupts(getattr(local_work, name), *at, after=after)
    monkeypatch.setattr(local_work, name, script)
    old = np.zeros(COUNT)
    work, lane = begin(box, region, OldSink(0, old.view(np.uint8)), np.full(COUNT, 2.0))
    interrupts = drive(work, lane)
    assert interrupts == len([call for call in at if call <= script.calls])
    assert (region.get() == 3).all()
    assert (old == 1).all()
    assert region.version == 3


@pytest.mark.parametrize("after", [False, True])
def test_x_moves_exactly_with_its_commit(box, region, monkeypatch, after):
    x = np.full(COUNT, 5.0)
    sink = Interrupts(MoveSink(0, x, np.float64(0.5)), 1, 3, after=after)
    work, lane = begin(box, region, sink, x, KernelCode.ELASTIC, 0.5)
    assert drive(work, lane) == 2
    assert (x == 3).all()
    assert (region.get() == 3).all()


def test_an_interrupt_inside_the_commit_rolls_back(box, region, monkeypatch):
    """Between two lines of the procedure the memory is as it was, and x too."""
    x = np.full(COUNT, 5.0)
    monkeypatch.setattr(local_work, "commit_now", nothing_now)
    script = Interrupts(accel.journaled, 1, after=False)
    monkeypatch.setattr(accel, "journaled", script)
    work, lane = begin(box, region, MoveSink(0, x, np.float64(0.5)), x, KernelCode.ELASTIC, 0.5)
    lane.queue.append(work)
    with pytest.raises(KeyboardInterrupt):
        lane.run(work)
    assert (x == 5).all()
    assert (region.get_nb().result() == 3).all()
    assert (x == 3).all()


def test_a_held_stripe_stops_a_change_in_the_middle(box, region, held):
    with held(region, 1):
        handle = region.accumulate_nb(np.ones(COUNT))
        assert not handle.done()
        assert handle._work.outcome() == "partial"
        assert handle._work.ranges_done() == [(0, STRIPE_NBYTES)]
        assert region.version == 1
    handle.wait()
    assert (region.get() == 2).all()


def test_a_read_behind_a_waiting_change_sees_it(box, region, held):
    with held(region, 1):
        change = region.put_nb(np.full(COUNT, 7.0))
        read = region.get_nb()
        assert not read.done()
    assert (read.result() == 7).all()
    assert change.done()


def test_a_read_of_a_held_stripe_needs_no_lock(box, region, held):
    with held(region, 1):
        assert (region.get() == 1).all()


@pytest.mark.skipif(accel.load() is None, reason="numpy alone has no runs to go on behind")
def test_a_read_goes_on_where_a_busy_stripe_stopped_it(box, region, held, monkeypatch):
    one_by_one = []

    def noted(region, piece, *rest):
        one_by_one.append(piece.stripe)
        return read_piece(region, piece, *rest)

    monkeypatch.setattr(local_work, "read_piece", noted)
    table = box._paths.data()._map(region.info).table
    with held(region, 1):
        table[1, Stripe.SEQ] += 1  # its writer is in the middle of a commit
        handle = region.get_nb()
        with pytest.raises(RequestTimeoutError):
            handle.wait(timeout_s=PASSED_S)
        table[1, Stripe.SEQ] += 1
    assert handle.ranges_done() == [(0, STRIPE_NBYTES)]
    assert (handle.result() == 1).all()
    assert set(one_by_one) == {1}


def test_another_box_waits_for_nobody_s_line(solo, box, region, held):
    other_region = box.create("other", shape=(2,))
    with solo_box(solo) as other, held(region, 1):
        handle = region.put_nb(np.zeros(COUNT))
        other.attach("other").put(np.ones(2, np.float32))
        assert not handle.done()
    handle.wait()
    assert other_region.get().tolist() == [1, 1]


def test_waits_tell_how_far_the_region_is(box, region):
    work = box._paths.data().wait_version(region.info, 2)
    assert not work.advance(PASSED_S)
    assert work.facts() == {"version": 0, "wanted": 2}
    assert (work.outcome(), work.ranges_done()) == ("not-sent", [])


def test_without_locks_x_moves_once_with_what_the_region_gains(box, monkeypatch):
    region = box.create("free", shape=(COUNT,), dtype="float64", consistency="none", init=1.0)
    monkeypatch.setattr(local_work, "commit_now", nothing_now)
    x = np.full(COUNT, 5.0)
    sink = MoveSink(0, x, np.float64(0.5))
    work, lane = begin(box, region, sink, x, KernelCode.ELASTIC, 0.5)
    work._sink = Interrupts(sink, 1, 3, after=True)
    assert drive(work, lane) == 2
    assert (x == 3).all()
    assert (region.get() == 3).all()


def test_an_interrupted_batch_leaves_nothing_in_line(box, region, held, monkeypatch):
    path, batch, ones = box._paths.data(), box.batch(), np.ones(8)
    for _ in range(4):
        batch.accumulate(region[:8], ones)
    with held(region, 0):
        monkeypatch.setattr(path, "change", Interrupts(path.change, 3, after=False))
        with pytest.raises(KeyboardInterrupt):
            batch.__exit__(None, None, None)
        monkeypatch.undo()
        assert not path._lane().queue
    ones[:] = 100
    assert (region.get() == 1).all()


def test_a_cancelled_change_hands_on_what_was_committed(box, region, held):
    x = np.full(COUNT, 5.0)
    with held(region, 1):
        work, lane = begin(
            box, region, MoveSink(0, x, np.float64(0.5)), x, KernelCode.ELASTIC, 0.5
        )
        lane.queue.append(work)
        lane.run(work)
        work._sink = Interrupts(work._sink, 1, after=False)
        lane.drop(work)
    stripe = STRIPE_NBYTES // 8
    assert (x[:stripe] == 3).all()
    assert (x[stripe:] == 5).all()
    assert (region.get()[stripe:] == 1).all()
