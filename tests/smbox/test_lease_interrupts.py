"""Ctrl-C while a lease is renewed: no mutex stays held."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time

import pytest

from smbox import lease as leases
from smbox.lease import Lease

LEASE_S = 60.0
WAIT_S = 10.0


@pytest.fixture
def lease(box):
    lease = Lease(box.create("places", shape=(1, 4), dtype="int64", init=0), LEASE_S)
    assert lease.take(0, (0, 0))
    return lease


def renew(lease):
    lease.renew(deadline_s=time.monotonic() + WAIT_S)


@pytest.fixture
def slow_switches():
    """A thread that computes keeps the GIL."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(WAIT_S)
    yield
    sys.setswitchinterval(before)


def test_an_interrupt_right_after_the_wait_for_a_mutex_leaves_it_free(lease, slow_switches):
    """SIGINT comes while ``acquire`` has the mutex and waits for the GIL to return."""
    mutex, main, is_taken = lease._mutex, threading.get_ident(), threading.Event()

    def interrupt():
        with mutex:
            is_taken.set()
            while sys._current_frames()[main].f_code.co_filename != leases.__file__:
                time.sleep(0.001)  # from here on the other thread is in ``acquire``
        while mutex.acquire(blocking=False):  # until the other thread has it
            mutex.release()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    is_taken.wait()
    with pytest.raises(KeyboardInterrupt):
        renew(lease)
    thread.join()
    renew(lease)


def test_an_interrupt_at_any_start_of_a_function_leaves_the_mutex_free(lease):
    """CPython handles signals there."""
    for at in itertools.count(1):
        starts = itertools.count(1)

        def trace(_frame, event, _, starts=starts, at=at):
            if event == "call" and next(starts) == at:
                raise KeyboardInterrupt  # ends the tracing, too

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            renew(lease)
        except KeyboardInterrupt:
            renew(lease)  # in the handler: the traceback still refers to the frames
        else:
            break
        finally:
            sys.settrace(before)
    assert at > 10
