"""Handles: done, wait, result, waiting again after a timeout, and repeated errors."""

from __future__ import annotations

import math
import time

import pytest

from smbox.errors import ConfigError, RegionFreedError, RequestTimeoutError
from smbox.handle import Handle
from smbox.work import Work


class Script(Work):
    """A request whose advances follow a list of bools and errors."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.deadlines = []
        self.cancelled = False
        self.known = "partial"
        self.moves = 0  # tries with progress
        self.moved = 0

    def advance(self, deadline_s):
        self.deadlines.append(deadline_s)
        self.moved = min(self.moved + 1, self.moves)
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    def progress(self):
        return self.moved

    def outcome(self):
        return self.known

    def ranges_done(self):
        return [(0, 8)]

    def facts(self):
        return {} if self.cancelled else {"holder_pid": 7}

    def cancel(self):
        self.cancelled = True


def handle(*steps, result=lambda: "value", timeout_s=math.inf):
    script = Script(*steps)
    return Handle("put", script, result, timeout_s), script


def test_done_tries_once_and_remembers():
    request, script = handle(False, True)
    assert not request.done()
    assert request.done()
    assert request.done()
    assert script.deadlines == [0.0, 0.0]
    request.wait()
    assert script.steps == []


def test_wait_has_the_timeout_of_the_box_or_its_own():
    request, script = handle(True, timeout_s=100.0)
    before = time.monotonic()
    request.wait()
    assert before + 100.0 <= script.deadlines[0] <= time.monotonic() + 100.0
    request, script = handle(True, timeout_s=100.0)
    request.wait(timeout_s=math.inf)
    assert script.deadlines == [math.inf]


def test_the_timeout_of_the_box_begins_anew_while_the_request_gets_on():
    request, script = handle(False, False, False, True, timeout_s=100.0)
    script.moves = 2
    with pytest.raises(RequestTimeoutError) as caught:
        request.wait()
    assert (script.steps, script.cancelled) == ([True], False)
    assert caught.value.facts["timeout_s"] == 100.0
    request.wait()


def test_a_timeout_that_was_asked_for_is_kept():
    request, script = handle(False, True)
    script.moves = 1
    with pytest.raises(RequestTimeoutError):
        request.wait(timeout_s=0.0)
    assert script.steps == [True]


def test_a_timeout_tells_what_is_known_and_can_be_continued():
    request, _ = handle(False, True)
    with pytest.raises(RequestTimeoutError) as caught:
        request.wait(timeout_s=0.0)
    assert caught.value.facts == {
        "op": "put",
        "timeout_s": 0.0,
        "outcome": "partial",
        "ranges_done": [(0, 8)],
        "holder_pid": 7,
    }
    assert caught.value.handle is request
    assert request.result() == "value"


def test_result_stays_the_same():
    request, _ = handle(True, result=lambda: "value")
    assert [request.result(), request.result()] == ["value", "value"]


def test_an_error_ends_the_request_and_stays():
    error = RegionFreedError("gone")
    request, _ = handle(error)
    assert request.done()
    for ask in (request.wait, request.result, request.wait):
        with pytest.raises(RegionFreedError) as caught:
            ask()
        assert caught.value is error


def test_an_error_of_the_first_wait_is_raised_again_without_a_try():
    request, script = handle(RegionFreedError("gone"))
    for _ in range(2):
        with pytest.raises(RegionFreedError):
            request.wait()
    assert len(script.deadlines) == 1
    with pytest.raises(RegionFreedError):
        request.finish()
    assert (request.is_over, script.cancelled) == (False, False)


def test_finish_cancels_when_it_is_interrupted():
    request, script = handle(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        request.finish()
    assert script.cancelled


def test_a_timeout_ends_a_blocking_verb():
    request, script = handle(False, True)
    with pytest.raises(RequestTimeoutError, match="outcome") as caught:
        request.finish(0.0)
    assert script.cancelled
    assert caught.value.handle is request
    assert caught.value.facts["holder_pid"] == 7
    assert request.done()
    for ask in (request.wait, request.result, request.finish):
        with pytest.raises(ConfigError, match="outcome"):
            ask()
    assert script.steps == [True]


def test_an_outcome_that_is_known_is_not_asked_for():
    request, _script = handle(False)
    with pytest.raises(RequestTimeoutError):
        request.finish(0.0)
    assert request.outcome() == "partial"
    assert request.ranges_done() == [(0, 8)]


def test_an_unknown_outcome_is_asked_for():
    request, script = handle(False, False, True, timeout_s=0.0)
    script.known = "unknown"
    with pytest.raises(RequestTimeoutError):
        request.finish()
    assert request.outcome(1.0) == "unknown"
    before = time.monotonic()
    request.outcome(100.0)
    assert script.deadlines[-1] >= before + 100.0


def test_the_outcome_of_what_is_done_is_all():
    request, script = handle(True)
    script.known = "unknown"
    assert request.outcome() == "unknown"
    assert script.deadlines == []
    request.wait()
    assert request.outcome() == "all"


def test_no_number_of_seconds_is_nonsense():
    waiting, script = handle(True)
    with pytest.raises(ConfigError, match="timeout_s"):
        waiting.wait(math.nan)
    assert script.deadlines == []
    assert waiting.result() == "value"


def test_an_outcome_that_is_known_takes_seconds_too(box):
    handle = box.create("r", 4).put_nb([1.0, 1.0, 1.0, 1.0])
    handle.wait()
    assert handle.outcome(timeout_s=0.0) == "all"
    for timeout_s in (math.nan, "x"):
        with pytest.raises(ConfigError, match="number of seconds"):
            handle.outcome(timeout_s=timeout_s)
