"""A lane runs its requests in order, whoever waits, and tells each failure once."""

from __future__ import annotations

import threading
import time

import pytest

from smbox.errors import ConfigError, PeerLostError, RegionFreedError
from smbox.paths.lane import Lane, LaneWork, Pause
from smbox.testing.contract_tools import in_threads

PASSED_S = 0.0


class Step(LaneWork):
    """Logs its name once it may; before that, the stripe is busy."""

    def __init__(self, lane, log, name, error=None):
        super().__init__(lane)
        self.log, self.name, self.failure = log, name, error
        self.is_free = True

    def step(self):
        if not self.is_free:
            raise self.reason
        if self.failure is not None:
            raise self.failure
        self.log.append(self.name)

    def ranges_done(self):
        return []

    def rested(self):
        self.rests += 1

    rests = 0

    @property
    def reason(self):
        class Busy(self.busy_class):
            def __init__(self):
                self.stripe = 3
                self.region = self

            spec = type("Spec", (), {"name": "some"})

            def holder_pid(self):
                return 42

        return Busy()

    from smbox.memory.busy import StripeBusy as busy_class


@pytest.fixture
def lane(solo):
    lane = Lane(solo.control.memory.name)
    yield lane
    lane.close()


def parked(lane, log):
    """Return a request that is begun and waits for its stripe."""
    work = Step(lane, log, "parked")
    work.is_free = False
    lane.begin(work)
    return work


def test_requests_run_at_once_and_in_order(lane):
    log = []
    works = [Step(lane, log, name) for name in "abc"]
    works[1].is_free = False
    for work in works:
        lane.begin(work)
    assert log == ["a"]
    assert [work.is_done for work in works] == [True, False, False]
    assert not works[2].advance(PASSED_S)
    assert works[2].facts() == {"region": "some", "stripe": 3, "holder_pid": 42}
    works[1].is_free = True
    assert works[2].advance(PASSED_S)
    assert log == ["a", "b", "c"]
    assert works[2].facts() == {}


def test_the_first_in_line_rests_when_the_driver_leaves_it(lane):
    works = [Step(lane, [], name) for name in "ab"]
    works[0].is_free = False
    for work in works:
        lane.begin(work)
    assert works[0].rests == 2
    assert not works[1].advance(PASSED_S)
    assert not lane.drain(PASSED_S)
    assert works[0].rests == 4
    with lane.mutex:  # as a signal handler inside a step
        lane.rest()
    assert (works[0].rests, works[1].rests) == (4, 0)
    works[0].is_free = True
    assert lane.drain(PASSED_S)
    assert (works[0].rests, works[1].rests) == (4, 0)


def test_any_thread_may_wait(lane):
    log = []
    work = Step(lane, log, "a")
    work.is_free = False
    lane.begin(work)

    def release(index):
        if index == 0:
            work.is_free = True
        assert work.advance(time.monotonic() + 60.0)

    in_threads(3, release)
    assert log == ["a"]


def test_a_failure_stops_no_other_request_and_is_told_to_who_waits(lane):
    log = []
    bad = Step(lane, log, "bad", RegionFreedError("gone"))
    good = Step(lane, log, "good")
    lane.begin(bad)
    lane.begin(good)
    assert good.advance(PASSED_S)
    for _ in range(2):
        with pytest.raises(RegionFreedError):
            bad.advance(PASSED_S)
    assert lane.drain(PASSED_S)


def test_drain_tells_a_failure_that_nobody_was_told_of(lane):
    lane.begin(Step(lane, [], "bad", RegionFreedError("gone")))
    with pytest.raises(RegionFreedError):
        lane.drain(PASSED_S)
    assert lane.drain(PASSED_S)


def test_drain_waits_for_all_in_line(lane):
    log = []
    work = Step(lane, log, "a")
    work.is_free = False
    lane.begin(work)
    assert not lane.drain(PASSED_S)
    work.is_free = True
    assert lane.drain(PASSED_S)
    assert log == ["a"]


def test_a_dropped_request_never_runs(lane):
    log = []
    work, other = Step(lane, log, "a"), Step(lane, log, "b")
    work.is_free = False
    lane.begin(work)
    lane.begin(other)
    work.cancel()
    work.is_free = True
    assert other.advance(PASSED_S)
    assert log == ["b"]
    with pytest.raises(ConfigError, match="cancelled"):
        work.advance(PASSED_S)


def test_a_closed_lane_is_an_error(lane):
    work = Step(lane, [], "a")
    work.is_free = False
    lane.begin(work)
    lane.close()
    with pytest.raises(PeerLostError, match="closed"):
        work.advance(PASSED_S)


def test_a_lane_is_left_when_its_thread_has_ended(solo):
    lanes = []
    thread = threading.Thread(target=lambda: lanes.append(Lane(solo.control.memory.name)))
    thread.start()
    thread.join()
    assert lanes[0].is_left()
    lanes[0].close()


def test_pauses_end_at_the_deadline():
    pause = Pause()
    assert not pause.sleep(PASSED_S)
    deadline_s = time.monotonic() + 0.005
    while pause.sleep(deadline_s):
        pass
    assert time.monotonic() >= deadline_s


def test_a_request_whose_beginning_was_cut_off_is_not_gone_on_with(lane):
    log = []
    lost = Step(lane, log, "lost", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        lane.begin(lost)  # whoever caught this was cut off, too, before it took it out of line
    lost.failure = None
    lane.begin(Step(lane, log, "next"))
    assert log == ["next"]
    assert lost.is_done


def test_a_request_whose_end_was_cut_off_is_ended_by_the_next(lane, monkeypatch):
    log = []
    work = parked(lane, log)

    def struck():
        log.append("struck")
        if len(log) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(work, "dropped", struck)
    with pytest.raises(KeyboardInterrupt):
        lane.drop(work)
    work.is_free = True
    lane.begin(Step(lane, log, "next"))
    assert log == ["struck", "struck", "next"]
    assert not lane.queue


def test_a_request_that_cannot_be_ended_stands_in_nobodys_way(lane, monkeypatch):
    log = []
    work = parked(lane, log)

    def broken():
        raise RegionFreedError("gone")

    monkeypatch.setattr(work, "dropped", broken)
    lane.drop(work)
    assert isinstance(work.error, RegionFreedError)
    lane.begin(Step(lane, log, "next"))
    assert log == ["next"]
