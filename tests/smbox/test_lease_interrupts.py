"""Ctrl-C while a lease is renewed: no mutex stays held."""

from __future__ import annotations

import itertools
import sys
import time

import pytest

from smbox.lease import Lease
from smbox.testing.interrupts import interrupted_as_it_acquires

LEASE_S = 60.0
WAIT_S = 10.0


@pytest.fixture
def lease(box):
    lease = Lease(box.create("places", shape=(1, 4), dtype="int64", init=0), LEASE_S)
    assert lease.take(0, (0, 0))
    return lease


def renew(lease):
    lease.renew(deadline_s=time.monotonic() + WAIT_S)


def test_an_interrupt_right_after_the_wait_for_a_mutex_leaves_it_free(lease):
    assert interrupted_as_it_acquires(lease._mutex._lock, lambda: renew(lease))
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
