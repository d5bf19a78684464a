"""Verbs in signal handlers that strike while the same thread is inside another verb."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox.memory import accel
from smbox.paths.reentry import check_not_mine, is_mine


def test_a_mutex_knows_its_thread():
    mutex = threading.RLock()
    check_not_mine(mutex)
    with mutex:
        assert is_mine(mutex)
        found = []
        other = threading.Thread(target=lambda: found.append(is_mine(mutex)))
        other.start()
        other.join()
        assert found == [False]
        with pytest.raises(ConfigError, match="handler"):
            check_not_mine(mutex)


@pytest.fixture
def strike(monkeypatch):
    """Raise a signal in the middle of the next commit, and call ``job`` in its handler."""
    journaled = accel.journaled
    jobs = []

    def struck(*args):
        if jobs:
            os.kill(os.getpid(), signal.SIGUSR1)
        journaled(*args)

    def handle(_number, _frame):
        jobs.pop()()

    former = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(accel, "journaled", struck)
    monkeypatch.setattr(accel, "prepare", lambda nbytes: None)
    yield jobs.append
    signal.signal(signal.SIGUSR1, former)


def test_a_handler_counts_while_its_thread_is_in_a_commit(box, strike):
    region, counter = box.create("some", shape=(4,)), box.counter("signals")
    seen = []
    strike(lambda: seen.append(counter.add(1, timeout_s=60.0)))
    region.accumulate(np.ones(4, np.float32))
    strike(lambda: seen.append(counter.add(1, timeout_s=60.0)))
    region.accumulate(np.ones(4, np.float32))
    assert (seen, counter.value) == ([0, 1], 2)
    assert region.get().tolist() == [2] * 4


def test_a_handler_cannot_go_on_with_what_it_interrupted(box, strike):
    region = box.create("some", shape=(4,))
    seen = []

    def flush():
        with pytest.raises(ConfigError, match="handler"):
            box.flush()
        seen.append(True)

    strike(flush)
    region.accumulate(np.ones(4, np.float32))
    assert seen == [True]
    assert region.get().tolist() == [1] * 4


def test_a_handler_that_closes_the_box_and_exits_leaves_the_memory_whole(solo, box, strike):
    region = box.create("some", shape=(4,))
    lane = box._paths.data()._lane()

    def leave():
        box.close()
        raise SystemExit

    strike(leave)
    with pytest.raises(SystemExit):
        region.accumulate(np.ones(4, np.float32))
    with pytest.raises(ConfigError):
        region.get()
    assert solo.control.memory.regions[region.info.address].table[0, 0] % 2 == 0
    assert solo.control.memory.regions[region.info.address].array().tolist() == [0] * 4
    lane.close()  # as at the end of the process


def test_a_handler_uses_another_link_while_its_thread_is_in_a_message(client, monkeypatch):
    info, other = client.create(4), client.create(4, name="other")
    link = client.data._link()
    passing, seen = link._pass, []

    def struck(work, deadline_s):
        if not seen:
            seen.append(client.data._link() is link)
            client.finish(client.change(other, np.ones(4, np.float32)))
            with pytest.raises(ConfigError, match="handler"):
                link.drain(0.0)
        return passing(work, deadline_s)

    monkeypatch.setattr(link, "_pass", struck)
    client.finish(client.change(info, np.ones(4, np.float32)))
    assert seen == [False]
    assert client.get(info).tolist() == client.get(other).tolist() == [1] * 4
