"""An interrupt at every line: what the region gains is what the worker's array loses."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import numpy as np
import pytest

import smbox
from smbox.memory import accel
from smbox.paths import local, local_work
from smbox.testing.solo import solo_box, solo_boxes

HOME = str(Path(smbox.__file__).parent)
STRIPES = 70_000  # elements: a stripe and a bit
START = 2.0**30


def is_with(frame):
    """Tell of lines that a with statement comes back to: no signal is handled there."""
    return (
        linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
    )


def interrupted(job, at):
    """Run ``job``, interrupted before its ``at``-th line of smbox; tell if there was one."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        lines += event == "line" and not is_with(frame)
        if lines == at and event == "line":
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    if request.param == "compiled":
        accel.load()
        return
    for module in (local, local_work):
        monkeypatch.setattr(module, "commit_now", lambda *arguments: arguments[-1])


@pytest.mark.usefixtures("way")
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
