"""An interrupt at every line: what the region gains is what the worker's array loses."""

from __future__ import annotations

import inspect
import linecache
import sys
from pathlib import Path

import numpy as np
import pytest

import smbox
from smbox.testing.solo import solo_box, solo_boxes

HOME = str(Path(smbox.__file__).parent)
STRIPES = 70_000  # elements: a stripe and a bit
START = 2.0**30


def is_with(frame):
    """Return True for lines of a with statement: no signal is handled there."""
    return (
        linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
    )


def interrupted(job, at, again=0):
    """Run ``job``, interrupted before its ``at``-th line of smbox; return whether it has one.

    Args:
        job: what is interrupted.
        at: counts from 1.
        again: the call of smbox, from that line on, at which it is interrupted once more.
    """
    lines = calls = 0

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        lines += event == "line" and not is_with(frame)
        if lines == at and event == "line":
            sys.setprofile(profile if again else None)
            raise KeyboardInterrupt  # ends the tracing, too
        return trace

    def profile(frame, event, _):
        nonlocal calls
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOME):
            calls += not code.co_flags & inspect.CO_GENERATOR  # which may only be closed
            if calls == again:
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return False


@pytest.mark.parametrize("count", [3, STRIPES])
@pytest.mark.parametrize("verb", ["elastic", "elastic_nb"])
def test_nothing_is_lost_or_doubled(count, verb):
    with solo_boxes() as opener, solo_box(opener) as box:
        region = box.create("center", shape=(count,), dtype="float64")
        x = np.zeros(count)
        exchange = {
            "elastic": lambda: region.elastic(x, 0.5),
            "elastic_nb": lambda: region.elastic_nb(x, 0.5).finish(),
        }[verb]
        at, is_over = 0, False
        while not is_over:
            at += 1
            region.put(np.zeros(count))
            x[:] = START
            is_over = not interrupted(exchange, at)
            center = region.get()
            np.testing.assert_array_equal(center, START - x)
            assert set(np.unique(center)) <= {0.0, START / 2}
        assert (x == START / 2).all()
        assert at > 30


@pytest.mark.parametrize("again", range(1, 13))
def test_nor_by_a_second_interrupt_while_the_first_is_dealt_with(again):
    with solo_boxes() as opener, solo_box(opener) as box, solo_box(opener) as other:
        region = box.create("center", shape=(3,), dtype="float64")
        seen = other.attach("center")
        x = np.zeros(3)
        at, is_over = 0, False
        while not is_over:
            at += 1
            region.put(np.zeros(3))
            x[:] = START
            is_over = not interrupted(lambda: region.elastic(x, 0.5), at, again)
            np.testing.assert_array_equal(seen.get(timeout_s=5.0), START - x)
            seen.accumulate(np.zeros(3), timeout_s=5.0)  # no stripe is held
        assert at > 30
