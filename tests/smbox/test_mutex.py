"""Mutexes: deadlines, interrupts, and forked children."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from smbox.deadline import ANSWER_MIN_S
from smbox.errors import RequestTimeoutError
from smbox.mutex import Mutex, holding


@contextmanager
def held(mutex: Mutex) -> Iterator[threading.Event]:
    """Let another thread hold a mutex until the event is set."""
    is_held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        go_on.wait()

    thread = threading.Thread(target=mutex.holding, args=(None, hold))
    thread.start()
    is_held.wait()
    try:
        yield go_on
    finally:
        go_on.set()
        thread.join()


def test_a_call_is_refused_when_a_request_of_it_would_end():
    mutex = Mutex()
    with held(mutex):
        for _ in range(2):
            with pytest.raises(RequestTimeoutError, match="another thread") as caught:
                mutex.holding(time.monotonic() - ANSWER_MIN_S + 0.01, lambda: None)
            assert caught.value.facts["outcome"] == "none"
        assert mutex.holding(time.monotonic(), lambda: 1, late=lambda: 2) == 2
    assert mutex.holding(math.inf, lambda: 1, late=lambda: 2) == 1


def test_a_call_at_its_deadline_waits_for_a_thread_that_holds_the_mutex_for_a_moment():
    mutex = Mutex()
    with held(mutex) as go_on:
        threading.Timer(0.05, go_on.set).start()
        assert mutex.holding(time.monotonic(), lambda: 1) == 1


def test_an_interrupt_of_the_wait_releases_nothing():
    class Interrupted:
        def acquire(self, *_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        holding(Interrupted(), None, lambda: None, late=lambda: None)


def test_a_forked_child_waits_for_no_thread_of_its_parent():
    """Its copy of a mutex that a thread held at the fork is never released."""
    mutex = Mutex()
    with held(mutex):
        if (child := os.fork()) == 0:
            signal.alarm(2)
            mutex.holding(None, lambda: os._exit(7))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
