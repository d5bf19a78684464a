"""Handles with a function chained to them, and handles in an event loop."""

from __future__ import annotations

import asyncio
import math
import sys
import threading

import pytest

from smbox.errors import ConfigError, RegionFreedError, RequestTimeoutError
from smbox.handle import Handle
from smbox.work import Work


class Script(Work):
    """A request whose advances follow a list of bools and errors."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.cancelled = False
        self.moves = self.moved = 0  # tries with progress; progress so far

    def advance(self, deadline_s):
        self.moved = min(self.moved + 1, self.moves)
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    def progress(self):
        return self.moved

    def outcome(self):
        return "partial"

    def ranges_done(self):
        return []

    def facts(self):
        return {}

    def cancel(self):
        self.cancelled = True


def handle(*steps, result=lambda: "value", timeout_s=math.inf):
    script = Script(*steps)
    return Handle("put", script, result, timeout_s), script


def test_then_has_the_function_called_once_by_whoever_waits():
    request, _ = handle(False, True, True, True)
    calls = []
    chained = request.then(lambda value: calls.append((value, threading.get_ident())) or 7)
    assert (chained.done(), calls) == (False, [])
    waiter = threading.Thread(target=chained.wait)
    waiter.start()
    waiter.join()
    assert (chained.result(), chained.result()) == (7, 7)
    assert calls == [("value", waiter.ident)]
    assert request.result() == "value"


def test_then_waits_for_the_handle_that_the_function_returns():
    request, _ = handle(True, True, True)
    inner, script = handle(False, False, True, True, result=lambda: "inner")
    chained = request.then(lambda _: inner)
    assert not chained.done()
    assert not chained.done()
    assert chained.result() == "inner"
    assert script.steps == []


def test_one_function_is_chained_to_a_handle():
    request, _ = handle(True, True)
    chained = request.then(str.upper)
    with pytest.raises(ConfigError, match="one function"):
        request.then(str.lower)
    assert chained.result() == "VALUE"


def test_then_of_a_handle_that_failed_fails_alike_and_calls_nothing():
    error, calls = RegionFreedError("gone"), []
    request, _ = handle(*[error] * 4)
    assert request.done()
    chained = request.then(calls.append)
    for ask in (chained.wait, chained.result):
        with pytest.raises(RegionFreedError) as caught:
            ask()
        assert caught.value is error
    assert calls == []


def test_what_the_function_raises_is_raised_at_every_call():
    request, _ = handle(True)
    chained = request.then(lambda _: 1 // 0)
    assert chained.done()
    for ask in (chained.wait, chained.result, chained.wait):
        with pytest.raises(ZeroDivisionError):
            ask()


def test_then_of_a_verb_that_timed_out_is_refused():
    request, _ = handle(False)
    with pytest.raises(RequestTimeoutError):
        request.finish(0.0)
    with pytest.raises(ConfigError, match="outcome"):
        request.then(str)


def test_then_takes_a_function():
    request, _ = handle(True)
    with pytest.raises(TypeError, match="int"):
        request.then(3)
    assert request.then(str.upper).result() == "VALUE"


def test_await_leaves_the_loop_to_others():
    request, _ = handle(*[False] * 5, True)
    turns = []

    async def others():
        while not request.is_done:
            turns.append(1)
            await asyncio.sleep(0)

    async def both():
        return (await asyncio.gather(wait_for(request), others()))[0]

    assert asyncio.run(both()) == "value"
    assert len(turns) > 5


async def wait_for(request):
    return await request


def test_any_loop_may_await_any_number_of_times():
    request, _ = handle(False, True)
    assert [asyncio.run(wait_for(request)) for _ in range(3)] == ["value"] * 3


def test_await_needs_a_running_loop():
    request, script = handle(True)
    waiting = wait_for(request)
    with pytest.raises(ConfigError, match="event loop"):
        waiting.send(None)
    assert script.steps == [True]
    assert request.result() == "value"


def test_a_cancelled_await_leaves_the_request_under_way():
    request, script = handle(*[False] * 100, True)

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_for(request), 0.01)

    asyncio.run(give_up())
    assert not script.cancelled
    assert asyncio.run(wait_for(request)) == "value"


def test_await_has_the_timeout_of_the_box_anew_while_the_request_gets_on():
    request, script = handle(*[False] * 60, True, timeout_s=0.2)
    with pytest.raises(RequestTimeoutError) as caught:
        asyncio.run(wait_for(request))
    assert caught.value.handle is request
    assert not script.cancelled
    script.moves = len(script.steps) - 2  # the last tries are long after the first
    assert asyncio.run(wait_for(request)) == "value"


def test_await_raises_what_the_request_failed_with():
    request, _ = handle(False, RegionFreedError("gone"))
    for _ in range(2):
        with pytest.raises(RegionFreedError):
            asyncio.run(wait_for(request))


def test_a_function_that_asks_its_own_handle_spoils_nothing():
    asked = []

    def function(value):
        asked.append(handle.done())
        with pytest.raises(RequestTimeoutError):
            handle.result()
        return value

    handle = Handle("put", Script(*[True] * 9), lambda: 7).then(function)
    assert (handle.result(), handle.result(), asked) == (7, 7, [False])


def test_a_function_cannot_return_its_own_handle():
    handle = Handle("put", Script(*[True] * 9), int).then(lambda _: handle)
    for _ in range(2):
        with pytest.raises(ConfigError, match="waits for it"):
            handle.result()


def test_chains_are_as_deep_as_the_stack_allows():
    calls = []

    def chained(length):
        request, _ = handle(*[True] * 9)
        for _ in range(length):
            request = request.then(lambda value: calls.append(1) or value)
        return request

    assert chained(200).result() == "value"
    assert len(calls) == 200
    deep = chained(sys.getrecursionlimit())
    with pytest.raises(RecursionError):
        deep.wait()
    assert len(calls) == 200
