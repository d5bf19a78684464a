"""A worker's own sums are right, and it sees what is wrong in what it reads."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from smbox.errors import ConnectError
from smbox.memory.layout import Stripe
from smbox.testing.chaos import plan, worker as workers
from smbox.testing.chaos.log import LogWriter, log_path, read_logs
from smbox.testing.chaos.verdict import judge
from smbox.testing.chaos.worker import REGION, ChaosError, Worker, connect_patiently


@pytest.fixture
def region(box):
    return box.create(REGION, plan.COUNT, "int64")


class Whole(random.Random):
    """Draws the whole region each time, and long timeouts."""

    def random(self):
        return 0.03


@pytest.fixture
def rng():
    return random.Random(5)


@pytest.fixture
def worker(box, region, tmp_path, rng):
    log = LogWriter(log_path(tmp_path, 1, 2))
    yield Worker(box, log, plan.identity(1, 2), rng)
    log.close()


def test_all_that_it_does_is_right(solo, worker, region, tmp_path):
    for _ in range(120):
        worker.step()
    logs = read_logs(tmp_path)
    log = logs[plan.identity(1, 2)]
    assert log.open == []
    assert len(log.acknowledged) > 110
    mapped = solo.control.memory.regions[int(region.address)]
    counts = (mapped.table[:, Stripe.SEQUENCE] >> np.uint64(Stripe.COMMITS_SHIFT)).tolist()
    assert judge(region.get(), counts, logs) == []
    assert judge(np.zeros(plan.COUNT, np.int64), counts, logs)


@pytest.mark.parametrize("rng", [Whole()])
@pytest.mark.parametrize("action", ["fetch", "get", "batch"])
def test_a_change_that_is_no_commit_is_seen(worker, region, action):
    getattr(worker, action)()
    region[0:1].accumulate([1])
    with pytest.raises(ChaosError, match="block 0: the shared cell"):
        getattr(worker, action)()


@pytest.mark.parametrize("rng", [Whole()])
def test_a_change_of_its_own_that_is_lost_is_seen(worker, region):
    worker.accumulate()
    region.put(np.zeros(plan.COUNT, np.int64))
    with pytest.raises(ChaosError, match="own cell"):
        worker.get()


def test_a_row_that_changes_is_seen(worker, region):
    region.put(np.ones(plan.COUNT, np.int64))
    with pytest.raises(ChaosError, match="row in stripe"):
        worker.get()


def test_a_call_that_returns_late_is_seen(worker, monkeypatch):
    monkeypatch.setattr(workers, "GRACE_S", -1.0)
    monkeypatch.setattr(workers, "TIMEOUT_S", 0.5)
    with pytest.raises(ChaosError, match="timeout"):
        worker.put()


def test_it_waits_for_a_node_but_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(workers, "CONNECT_S", 0.05)
    begun_s = time.monotonic()
    with pytest.raises(ConnectError):
        connect_patiently(f"ipc://{tmp_path}/nobody", "ipc")
    assert time.monotonic() > begun_s
