"""Ends of runs whose workers come to them at different times."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import smbox
from smbox.errors import ConfigError, RequestTimeoutError
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch.averaging.parameter_server import ParameterServer
from smbox_torch.downpour.adownpour import ADownpour
from smbox_torch.downpour.downpour import Downpour
from smbox_torch.downpour.mdownpour import MDownpour
from smbox_torch.downpour.mvadownpour import MVADownpour
from smbox_torch.downpour.server_downpour import ServerDownpour
from smbox_torch.downpour.ssp import SSP
from smbox_torch.elastic.eamsgd import EAMSGD
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.elastic.easgd_sync import SyncEASGD
from smbox_torch.elastic.seasgd import SEASGD
from smbox_torch.hogwild.dogwild import Dogwild

torch.set_num_threads(1)

WAIT_S = 60.0
KINDS = {
    "EASGD": (EASGD, {"period": 10}),
    "EASGD overlapped": (EASGD, {"period": 10, "overlap": True}),
    "EAMSGD": (EAMSGD, {"period": 10, "momentum": 0.5}),
    "EAMSGD overlapped": (EAMSGD, {"period": 10, "momentum": 0.5, "overlap": True}),
    "SEASGD": (SEASGD, {"period": 10}),
    "SyncEASGD": (SyncEASGD, {"period": 10}),
    "Downpour": (Downpour, {"n_push": 20, "n_fetch": 20}),
    "ServerDownpour": (ServerDownpour, {"n_push": 20, "n_fetch": 20}),
    "ADownpour": (ADownpour, {"period": 20}),
    "MVADownpour": (MVADownpour, {"period": 20, "rate": 0.5}),
    "SSP": (SSP, {"period": 20}),
    "MDownpour": (MDownpour, {}),
    "ParameterServer": (ParameterServer, {}),
    "Dogwild": (Dogwild, {}),
}


def until(is_true):
    """Wait, for WAIT_S at most, until something is true."""
    deadline_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def worker(box, kind=EASGD, number=0, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    settings = {"workers": 1} | settings
    return Descent(number, x, kind(torch.optim.SGD([x], lr=LR), box, "run", **settings))


def center(box) -> np.ndarray:
    return box.attach("run.float32").get()


@pytest.fixture
def node():
    with smbox.local("64MiB") as box:
        yield box


@pytest.mark.parametrize("name", KINDS)
def test_after_a_finish_that_timed_out_only_finish_and_close_go_on(name, node):
    kind, settings = KINDS[name]
    one = worker(node, kind, workers=2, rank=0, lease_s=WAIT_S, **settings)
    if name not in {"ParameterServer", "SyncEASGD"}:  # their first step waits for the others
        one.run(3)
    with pytest.raises(RequestTimeoutError, match=r"rank 1 \(never came\)"):
        one.optimizer.finish(timeout_s=0.1)
    before = center(node)
    with pytest.raises(ConfigError, match="finish was called"):
        one.run()
    np.testing.assert_array_equal(center(node), before)
    two = worker(node, kind, workers=2, rank=1, lease_s=WAIT_S, **settings)
    two.optimizer.close()
    one.optimizer.finish(timeout_s=WAIT_S)
    np.testing.assert_array_equal(one.values(), one.optimizer._best().values()["float32"])
    with pytest.raises(ConfigError, match="closed"):
        one.run()


def test_a_fast_worker_waits_for_a_slow_one_as_long_as_it_lives(node, monkeypatch, caplog):
    monkeypatch.setattr("smbox.meeting.MEET_TIMEOUT_S", 0.1)
    monkeypatch.setattr("smbox.meeting.TELL_S", 0.5)
    fast, slow = (worker(node, workers=2, lease_s=WAIT_S) for _ in range(2))
    fast.run(3)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(fast.optimizer.finish)
        until(lambda: "waits for rank 1 (host" in caplog.text)
        slow.run(12)
        assert not ending.done()
        slow.optimizer.finish()
        ending.result(WAIT_S)
    np.testing.assert_array_equal(fast.values(), center(node))
    np.testing.assert_array_equal(slow.values(), center(node))


def test_workers_that_meet_in_steps_finish_together_after_unequal_numbers_of_them(node):
    few, many = (
        worker(node, SyncEASGD, number=n, workers=2, rank=n, lease_s=WAIT_S, period=1)
        for n in range(2)
    )

    def run(one: Descent, steps: int) -> None:
        one.run(steps)
        one.optimizer.finish(timeout_s=WAIT_S)

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(run, few, 4), pool.submit(run, many, 30)]
        for each in ends:
            each.result(WAIT_S)
    assert many.optimizer.steps == 30
    np.testing.assert_array_equal(few.values(), center(node))
    np.testing.assert_array_equal(many.values(), center(node))


def test_a_member_belongs_to_one_optimizer_at_a_time(node):
    with smbox.join(node, "gan", lease_s=WAIT_S) as member:
        first = worker(node, workers=member)
        first.run(3)
        x = torch.nn.Parameter(torch.zeros(4))
        sgd = torch.optim.SGD([x], lr=LR)
        with pytest.raises(ConfigError, match="belongs to another optimizer"):
            EASGD(sgd, node, "second", workers=member)
        assert [info.name for info in node.regions() if info.name.startswith("second")] == []
        first.optimizer.close()
        assert member.progress == 3
        EASGD(sgd, node, "second", workers=member).close()
        third = EASGD(sgd, node, "second", workers=member)
        del third
        EASGD(sgd, node, "second", workers=member).close()
