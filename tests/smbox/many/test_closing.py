"""A box that one thread closes while another one uses it."""

from __future__ import annotations

import itertools
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest

import smbox
import smbox.directory
import smbox.paths.pair
import smbox.paths.threads
from smbox.errors import ConfigError, PeerLostError
from smbox.lease import Lease

X = np.ones(12, np.float32)


def called_at(at, call, job, file):
    """Run a job, with a call before its ``at``-th line in a file; return if it was made."""
    lines = itertools.count(1)
    was_called = False

    def trace(frame, event, _):
        nonlocal was_called
        if frame.f_code.co_filename != file:
            return None
        if event == "line" and next(lines) == at:
            was_called = True
            call()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    finally:
        sys.settrace(before)
    return was_called


@pytest.mark.parametrize("module", [smbox.paths.pair, smbox.paths.threads])
def test_a_close_at_any_line_of_a_striped_verb_ends_it_with_an_error_of_smbox(team, module):
    """It could raise AttributeError: the paths, or those of the thread, were read twice."""
    region = team.box().create("w", init=0 * X, layout="striped")

    def add():
        with suppress(ConfigError, PeerLostError):
            attached.accumulate(X)

    for at in itertools.count(1):
        box = team.box()
        attached = box.attach("w")
        if not called_at(at, box.close, add, module.__file__):
            break
        with pytest.raises(ConfigError, match="closed"):
            attached.accumulate(X)
    assert at > 10
    assert region.get().max() <= at


def test_what_is_due_at_a_close_may_be_withdrawn_at_any_line_of_it(team):
    """It could raise KeyError, as when another thread released a lock of the box."""

    def is_withdrawn(at):
        box, ends = team.box(), [lambda: None, lambda: None]
        for end in ends:
            box.before_close(end)

        def withdraw():
            for end in ends:
                box.not_before_close(end)

        return called_at(at, withdraw, box.close, smbox.directory.__file__)

    assert next(at for at in itertools.count(1) if not is_withdrawn(at)) > 3


def test_a_box_that_two_threads_close_leaves_its_runs(team, monkeypatch):
    """The second one closed the paths before the first one had left."""
    box = team.box()
    smbox.join(box, "run")
    leave = Lease.leave

    def leave_late(lease, **deadline):
        monkeypatch.undo()
        thread = threading.Thread(target=box.close)
        thread.start()
        thread.join()
        leave(lease, **deadline)

    monkeypatch.setattr(Lease, "leave", leave_late)
    box.close()
    assert smbox.join(team.box(), "run").count == 1
