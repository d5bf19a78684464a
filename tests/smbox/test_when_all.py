"""when_all: requests are driven in turn, all are waited for, the first error is raised."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from smbox.combining import TURN_S
from smbox.errors import ConfigError, RegionFreedError, RequestTimeoutError
from smbox.handle import Handle, when_all
from smbox.testing.solo import solo_box
from smbox.work import Work

NEVER_S = 1000.0


class Step(Work):
    """A request that ends or fails at its n-th advance."""

    def __init__(self, turns, error=None, known="none"):
        self.left, self.failure, self.known = turns, error, known

    def advance(self, deadline_s):
        self.left -= 1
        if self.left > 0:
            return False
        if self.failure is not None:
            raise self.failure
        return True

    def begin(self):
        pass

    def progress(self):
        return 0

    def outcome(self):
        return self.known

    def ranges_done(self):
        return []

    def facts(self):
        return {"left": self.left}

    def cancel(self):
        pass


def handle(turns, value=None, error=None, timeout_s=NEVER_S, known="none"):
    return Handle("get", Step(turns, error, known), lambda: value, timeout_s)


def test_the_results_come_in_order_whoever_is_first():
    assert when_all([handle(9, "a"), handle(1, "b"), handle(4, "c")]).result() == (
        "a",
        "b",
        "c",
    )


def test_all_are_waited_for_and_the_first_error_is_raised():
    late, first, second = handle(9, "a"), RegionFreedError("first"), RegionFreedError("second")
    both = when_all([late, handle(5, error=first), handle(1, error=second)])
    for _ in range(2):
        with pytest.raises(RegionFreedError) as caught:
            both.wait()
        assert caught.value is first
    assert late.work.left <= 0


def test_requests_that_all_end_at_once_are_done_though_the_time_is_up():
    assert when_all([handle(1), handle(1)]).done()


def test_each_of_several_is_driven_for_a_moment_and_the_last_as_long_as_wanted():
    class Noting(Step):
        def advance(self, deadline_s):
            waits_s.append(deadline_s - time.monotonic())
            return super().advance(deadline_s)

    waits_s = []
    each = [Handle("get", Noting(turns), str, NEVER_S) for turns in (1, 2)]
    when_all(each).wait(timeout_s=NEVER_S)
    assert max(waits_s[:2]) <= TURN_S
    assert waits_s[2] > TURN_S


def test_a_timeout_leaves_all_under_way():
    both = when_all([handle(1, "a", known="all"), handle(math.inf)])
    with pytest.raises(RequestTimeoutError) as caught:
        both.wait(timeout_s=0.0)
    assert caught.value.facts["outcome"] == "partial"
    assert not both.done()
    assert when_all([handle(1, known="all"), handle(1, known="unknown")]).outcome() == "unknown"


def test_facts_are_those_of_the_first_that_goes_on():
    assert when_all([handle(9), handle(4)]).work.facts() == {"left": 9}


def test_the_outcome_of_all_that_were_cancelled_is_asked_for():
    each = [handle(math.inf, known="unknown"), handle(1, known="unknown"), handle(1)]
    both = when_all(each).work
    both.cancel()
    assert not both.advance(0.0)
    assert [request.work.left for request in each[1:]] == [0, 1]


def test_each_request_that_ends_is_progress():
    both = when_all([handle(1, "a"), handle(math.inf)])
    before = both.work.progress()
    assert not both.done()
    assert both.work.progress() > before


def test_the_timeout_is_the_longest():
    assert when_all([handle(1, timeout_s=1.0), handle(1, timeout_s=3.0)]).timeout_s == 3.0
    none = when_all(iter([]))
    assert (none.outcome(), none.result()) == ("all", ())


def test_a_handle_is_given_once():
    each = handle(1, "a")
    with pytest.raises(ConfigError, match="twice"):
        when_all([each, each])
    assert when_all([each]).then(len).result() == 1


def test_only_handles_are_taken():
    with pytest.raises(TypeError, match="int"):
        when_all([handle(1), 3])


def test_a_call_that_has_timed_out_is_none_that_goes_on(solo, held):
    """Such a handle must not count as successful."""
    with solo_box(solo) as box:
        region = box.create("r", shape=(4,), dtype="float32")
        with held(region), pytest.raises(RequestTimeoutError) as caught:
            region.accumulate(np.ones(4, np.float32), timeout_s=0.0)
        with pytest.raises(ConfigError, match="is over"):
            when_all([region.get_nb(), caught.value.handle])


def test_what_follows_one_that_is_done_keeps_no_wait_for_the_others_from_its_timeout(
    solo, held
):
    with solo_box(solo, timeout_s=0.3) as box, ThreadPoolExecutor(1) as executor:
        stuck, free = (box.create(name, shape=(4,), dtype="float32") for name in "ab")
        is_over = threading.Event()

        def begin_one_that_waits():
            with held(free):
                return free.accumulate_nb(np.ones(4, np.float32))

        def go_on():
            for _ in range(200):
                begin_one_that_waits().wait()
                if is_over.wait(0.01):
                    break
            is_over.set()

        first = executor.submit(begin_one_that_waits).result()
        first.wait()
        executor.submit(go_on)
        with held(stuck):
            both = when_all([first, stuck.accumulate_nb(np.ones(4, np.float32))])
            with pytest.raises(RequestTimeoutError):
                both.wait()
            was_kept = not is_over.is_set()
            is_over.set()
        assert was_kept
