"""A box that one thread closes while another one uses it."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
import weakref
from contextlib import suppress
from unittest.mock import Mock

import numpy as np
import pytest

import smbox
import smbox.directory
import smbox.paths.pair
import smbox.paths.threads
from smbox.errors import ConfigError, PeerLostError, RequestTimeoutError
from smbox.lease import Lease
from smbox.region import Region
from smbox.roster import Roster

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
            box.before_close(end, end)

        def withdraw():
            for end in ends:
                box.not_before_close(end)

        return called_at(at, withdraw, box.close, smbox.directory.__file__)

    assert next(at for at in itertools.count(1) if not is_withdrawn(at)) > 3


def test_what_is_due_at_a_close_may_be_withdrawn_by_garbage_collection(team):
    """It leaves the run of an optimizer: RuntimeError, as the ends changed while listed."""

    class Cycle:
        pass

    box, thresholds = team.box(), gc.get_threshold()
    for key in range(600):
        box.before_close(key, int)
    gc.collect()  # also the free tuples: the list has new ones
    cycle = Cycle()
    cycle.own = cycle
    weakref.finalize(cycle, box.not_before_close, 0)
    del cycle
    gc.set_threshold(300)  # more than the close makes before the list
    try:
        box.close()
    finally:
        gc.set_threshold(*thresholds)


def close_by_another_thread(box):
    thread = threading.Thread(target=box.close)
    thread.start()
    thread.join()


ENDS = {
    "close": lambda box, member, lock: box.close(),
    "leave": lambda box, member, lock: (member.leave(), lock.leave()),
    "release": lambda box, member, lock: (lock.release(), member.leave()),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_box_that_closes_while_another_thread_leaves_its_places_has_left_them(
    team, monkeypatch, end
):
    """It closed the paths before the other thread had left."""
    box, other = team.box(), team.box()
    member, lock = smbox.join(box, "run"), box.lock("l")
    lock.acquire()
    leave = Lease.leave

    def leave_late(lease, **deadline):
        monkeypatch.undo()
        close_by_another_thread(box)
        leave(lease, **deadline)

    monkeypatch.setattr(Lease, "leave", leave_late)
    end(box, member, lock)
    assert smbox.join(other, "run").count == 1
    other.lock("l").acquire(timeout_s=0.0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RequestTimeoutError("late")])
@pytest.mark.parametrize("at", [(Lease, "leave"), (Region, "fetch_and_op")])
def test_a_lock_whose_release_did_not_end_is_left_when_its_box_closes(
    team, monkeypatch, at, error
):
    """It stayed taken for its lease."""
    box, other = team.box(), team.box()
    lock = box.lock("l")
    lock.acquire()
    with monkeypatch.context() as during:
        during.setattr(*at, Mock(side_effect=error))
        with pytest.raises((KeyboardInterrupt, RequestTimeoutError)):
            lock.release()
    box.close()
    other.lock("l").acquire(timeout_s=0.0)


TAKES = {
    "join": lambda box: smbox.join(box, "run"),
    "acquire": lambda box: box.lock("l").acquire(),
}


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("place", [(Lease, "take"), (Roster, "write")])
def test_who_takes_a_place_while_another_thread_closes_the_box_holds_none(
    team, monkeypatch, place, take
):
    """It held the place until its lease ended."""
    box, other = team.box(), team.box()
    original = getattr(*place)

    def late(*args, **more):
        monkeypatch.undo()
        close_by_another_thread(box)
        return original(*args, **more)

    monkeypatch.setattr(*place, late)
    with pytest.raises(ConfigError, match="closed"):
        take(box)
    assert smbox.join(other, "run").count == 1
    other.lock("l").acquire(timeout_s=0.0)


def test_what_is_registered_while_the_box_closes_runs_at_once(team):
    box, ran = team.box(), []
    box.before_close(1, lambda: box.before_close(2, lambda: ran.append(2)))
    box.close()
    assert 2 in ran


def test_a_forked_child_that_closes_the_box_ends_nothing_of_its_parent(team):
    box, ran = team.box(), []
    box.before_close(1, lambda: ran.append(1))
    if (child := os.fork()) == 0:
        box.close()
        os._exit(len(ran))
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_forked_while_the_box_closes_may_register_what_its_close_ends(team):
    box, ran, status = team.box(), [], []

    def fork():
        if (child := os.fork()) == 0:
            box.before_close(2, lambda: ran.append(2))
            os._exit(len(ran))
        status.append(os.waitpid(child, 0)[1])

    box.before_close(1, fork)
    box.close()
    assert status == [0]


def test_an_interrupted_close_leaves_its_lock_for_the_lease_at_most(team, monkeypatch):
    box = team.box()
    box.lock("door", lease_s=0.2).acquire()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Lease, "leave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            box.close()
    with team.box().lock("door", timeout_s=60.0):
        pass
