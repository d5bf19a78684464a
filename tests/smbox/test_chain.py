"""Chains: when each request starts, and what a failure or a cancel leaves."""

from __future__ import annotations

import math
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from smbox.combining import Chain
from smbox.errors import ConfigError, RegionFreedError
from smbox.testing.interrupts import interrupted_as_it_acquires
from smbox.work import Work


class Step(Work):
    """A request whose advances follow a list; it records the calls."""

    def __init__(self, *steps, outcome="none"):
        self.steps, self.told, self.known = list(steps), [], outcome

    def begin(self):
        self.told.append("begin")

    def advance(self, deadline_s):
        self.told.append("advance")
        step = self.steps.pop(0) if self.steps else True
        if isinstance(step, BaseException):
            raise step
        return step

    def progress(self):
        return len(self.told)

    def outcome(self):
        return self.known

    def ranges_done(self):
        return [(0, 8)]

    def facts(self):
        return {"told": len(self.told)}

    def cancel(self):
        self.told.append("cancel")


def chain(first, second):
    return Chain(first, lambda: second)


def behind(function):
    return Chain(Step(outcome="all"), function)


def test_the_second_is_driven_when_the_first_is_done():
    first, second = Step(False, True), Step(False, True)
    work = chain(first, second)
    work.begin()
    assert (first.told, second.told) == (["begin"], [])
    assert not work.advance(0.0)
    assert second.told == []
    assert not work.advance(0.0)
    assert second.told == ["advance"]
    first.told.clear()
    assert work.facts() == {"told": 1}  # of the second, which is waited for
    assert work.advance(0.0)


def test_a_first_that_fails_ends_both():
    error = RegionFreedError("gone")
    work = chain(Step(error, error), second := Step())
    for _ in range(2):
        with pytest.raises(RegionFreedError):
            work.advance(0.0)
    assert second.told == []


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ("none", None, "none"),
        ("partial", None, "partial"),
        ("unknown", None, "unknown"),
        ("all", None, "partial"),
        ("all", "none", "partial"),
        ("all", "unknown", "unknown"),
        ("all", "all", "all"),
        ("none", "all", "all"),  # a wait for a version, which changes nothing
        ("none", "none", "none"),
    ],
)
def test_the_outcome_is_all_with_the_second_and_only_then(first, second, outcome):
    work = chain(Step(second is not None, outcome=first), Step(False, outcome=second))
    work.advance(0.0)
    assert work.outcome() == outcome
    assert work.ranges_done() == [(0, 8)]


def test_what_was_cancelled_is_settled_and_begins_nothing():
    first, second = Step(False, outcome="unknown"), Step()
    work = chain(first, second)
    work.advance(0.0)
    work.cancel()
    assert work.advance(0.0)
    assert (first.told, second.told) == (["advance", "cancel", "advance"], [])


def test_a_cancel_reaches_both_once_both_are_begun():
    first, second = Step(True, outcome="all"), Step(False, False, outcome="unknown")
    work = chain(first, second)
    work.advance(0.0)
    work.cancel()
    assert not work.advance(0.0)
    assert second.told == ["advance", "cancel", "advance"]
    assert first.told[-1] == "cancel"


def test_two_threads_that_wait_drive_one_second():
    second, made = Step(), []

    def describe():
        time.sleep(0.05)
        made.append(second)
        return second

    work = Chain(Step(), describe)
    threads = [threading.Thread(target=work.advance, args=(0.0,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_function_is_called_once_and_what_it_began_is_driven():
    calls, began = [], Step(False, True)
    work = behind(lambda: calls.append(1) or began)
    assert work.outcome() == "partial"
    assert not work.advance(0.0)
    assert work.advance(0.0)
    assert calls == [1]


def test_the_call_is_progress():
    """A wait that began before the call gets the timeout of the box anew."""
    first = Step()
    first.progress = lambda: 7
    work = Chain(first, lambda: None)
    assert work.progress() == 7
    work.advance(math.inf)
    assert work.progress() == 8


def test_a_function_that_raised_raises_the_same_again():
    error, calls = ValueError("no"), []

    def function():
        calls.append(1)
        raise error

    work = behind(function)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            work.advance(0.0)
    assert (calls, work.outcome()) == ([1], "partial")


def test_a_function_that_was_interrupted_is_not_called_again():
    calls = []

    def function():
        calls.append(1)
        raise KeyboardInterrupt

    work = behind(function)
    with pytest.raises(KeyboardInterrupt):
        work.advance(0.0)
    with pytest.raises(ConfigError, match="interrupted"):
        work.advance(0.0)
    assert calls == [1]


def test_an_interrupt_right_after_the_wait_for_a_chain_leaves_it_to_other_threads():
    work = behind(lambda: None)
    assert interrupted_as_it_acquires(work._lock, lambda: work.advance(math.inf))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work.advance, 0.0).result()


def test_who_waits_while_another_thread_calls_keeps_its_deadline():
    entered, leave = threading.Event(), threading.Event()

    def function():
        entered.set()
        leave.wait(30.0)

    work = behind(function)
    thread = threading.Thread(target=work.advance, args=(0.0,))
    thread.start()
    entered.wait(30.0)
    assert not work.advance(time.monotonic() + 0.05)
    leave.set()
    thread.join()
    assert work.advance(0.0)


def test_the_function_itself_finds_the_request_not_done():
    asked = []
    work = behind(lambda: asked.append(work.advance(math.inf)))
    assert work.advance(0.0)
    assert asked == [False]
    assert work.outcome() == "all"


def test_a_signal_handler_inside_the_function_finds_the_request_not_done():
    asked = []
    work = behind(lambda: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, lambda *_: asked.append(work.advance(math.inf)))
    try:
        assert work.advance(0.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert asked == [False]
    assert work.advance(0.0)


def test_a_function_cannot_begin_what_waits_for_it():
    for begun in (lambda work: work, lambda work: chain(work, Step())):
        work = behind(lambda begun=begun: begun(work))  # noqa: B023 -- called in this round
        for _ in range(2):
            with pytest.raises(ConfigError, match="waits for it"):
                work.advance(0.0)
        assert work.outcome() == "partial"
