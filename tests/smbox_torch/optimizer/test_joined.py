"""Optimizers that join a run: rates, the last exchange, and ending together."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

import smbox
from smbox import heartbeat
from smbox.errors import ConfigError, LeaseLostError, RequestTimeoutError
from smbox.testing.model_box import ModelBox
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

torch.set_num_threads(1)

WAIT_S = 60.0
LEASE_S = 0.6
LAZY = {
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
}
"""Algorithms that do not share every step, with settings under which nine steps are pending."""

EAGER = {"MDownpour": (MDownpour, {}), "ParameterServer": (ParameterServer, {})}


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


@pytest.mark.parametrize("name", LAZY)
def test_closing_shares_what_the_period_left(name):
    kind, settings = LAZY[name]
    box = ModelBox()
    one = worker(box, kind, **settings)
    first = center(box)
    one.run(9)
    np.testing.assert_allclose(center(box), first, rtol=0, atol=1e-6)
    one.optimizer.close()
    assert np.abs(center(box) - first).max() > 1e-3
    shared = center(box)
    one.optimizer.close()
    np.testing.assert_array_equal(center(box), shared)


def test_four_steps_at_the_default_period_reach_the_center():
    box = ModelBox()
    one = worker(box)
    with one.optimizer:
        one.run(4)
        before = center(box)
    np.testing.assert_array_equal(before, start())
    np.testing.assert_allclose(center(box), 0.1 * start() + 0.9 * moved(4), atol=1e-5)


def moved(steps: int) -> np.ndarray:
    """Where a lone worker is that exchanges with nobody."""
    lone = worker(ModelBox(), period=1000)
    lone.run(steps)
    return lone.values()


@pytest.mark.parametrize("name", LAZY)
def test_after_an_error_or_on_demand_nothing_is_shared(name):
    kind, settings = LAZY[name]
    for ask in (True, False):
        box = ModelBox()
        one = worker(box, kind, **settings)
        first = center(box)
        one.run(9)
        if ask:
            one.optimizer.close(exchange=False)
        else:
            with pytest.raises(KeyError), one.optimizer:
                raise KeyError("of the loop")
        np.testing.assert_allclose(center(box), first, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", {**LAZY, **EAGER})
def test_finish_shares_the_rest_and_leaves_the_center_in_the_model(name):
    kind, settings = {**LAZY, **EAGER}[name]
    box = ModelBox()
    one = worker(box, kind, **settings)
    first = center(box)
    one.run(9)
    best = one.optimizer._best()
    one.optimizer.finish(timeout_s=WAIT_S)
    found = next(iter(best.values().values())).numpy()
    np.testing.assert_array_equal(one.values(), found)
    assert np.abs(center(box) - first).max() > 1e-3
    with pytest.raises(ConfigError, match="closed"):
        one.run()
    with pytest.raises(ConfigError, match="closed"):
        one.optimizer.finish()
    one.optimizer.close()


def test_batch_norm_ends_at_the_center_too():
    model = torch.nn.BatchNorm1d(3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    box = ModelBox()
    optimizer = EASGD(sgd, box, "bn", model=model, workers=1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 3) + 4.0).square().sum().backward()
        optimizer.step()
    optimizer.finish()
    shared = box.attach("bn.buffers.float32").get()
    found = torch.cat([model.running_mean, model.running_var]).numpy()
    np.testing.assert_array_equal(found, shared)
    assert shared[:3].max() > 0.5


def test_workers_finish_together(node):
    one, two = (worker(node, number=n, workers=2, lease_s=WAIT_S) for n in range(2))
    one.run(4)
    two.run(7)
    first = threading.Thread(target=one.optimizer.finish, kwargs={"timeout_s": WAIT_S})
    first.start()
    until(lambda: two.optimizer.member.look().words[0, 2] != 0)
    two.optimizer.finish(timeout_s=WAIT_S)
    first.join(WAIT_S)
    np.testing.assert_array_equal(one.values(), center(node))
    np.testing.assert_array_equal(two.values(), center(node))
    assert node.attach("run.members").get()[:2, 0].all()


def test_finish_names_who_does_not_come_and_may_be_called_again(node):
    one = worker(node, workers=2, lease_s=WAIT_S)
    one.run(3)
    with pytest.raises(RequestTimeoutError, match=r"rank 1 \(never came\)"):
        one.optimizer.finish(timeout_s=0.1)
    two = worker(node, workers=2, lease_s=WAIT_S)
    two.optimizer.close()
    one.optimizer.finish(timeout_s=WAIT_S)
    np.testing.assert_array_equal(one.values(), center(node))


def test_finish_waits_neither_for_the_dead_nor_for_those_who_left(node):
    one, dead, left = (worker(node, workers=3, lease_s=LEASE_S) for _ in range(3))
    heartbeat.drop(dead.optimizer.member)
    left.optimizer.close()
    one.optimizer.finish(timeout_s=WAIT_S)


@pytest.mark.parametrize(("kind", "of_three"), [(EASGD, 0.45), (SEASGD, 0.3), (SyncEASGD, 0.3)])
def test_rates_by_default_follow_who_is_there(kind, of_three, node):
    one = worker(node, kind, workers=2, lease_s=LEASE_S)
    assert one.optimizer.moving_rate == pytest.approx(0.45)
    two = worker(node, kind, workers=2, lease_s=LEASE_S)
    three = worker(node, kind, workers=2, lease_s=LEASE_S)
    until(lambda: one.optimizer.moving_rate == pytest.approx(of_three))
    three.optimizer.close()
    until(lambda: one.optimizer.moving_rate == pytest.approx(0.45))
    heartbeat.drop(two.optimizer.member)
    until(lambda: one.optimizer.moving_rate == pytest.approx(0.9))


def test_a_rate_that_was_given_stays(node):
    one = worker(node, workers=4, moving_rate=0.125, lease_s=LEASE_S)
    assert one.optimizer.moving_rate == 0.125
    assert one.optimizer.team.workers == 4


def test_a_worker_that_was_replaced_exchanges_nothing(node):
    one, two = (worker(node, workers=2, period=1, lease_s=LEASE_S) for _ in range(2))
    two.run(2)
    heartbeat.drop(two.optimizer.member)
    until(lambda: one.optimizer.member.count == 1)
    successor = worker(node, workers=2, period=1, lease_s=LEASE_S)
    assert successor.optimizer.rank == 1
    assert successor.optimizer.steps == 1  # what the second exchange told
    before = center(node)
    with pytest.raises(LeaseLostError):
        two.run()
    np.testing.assert_array_equal(center(node), before)


def test_a_member_of_the_users_counts_and_stays(node):
    with smbox.join(node, "run", lease_s=LEASE_S) as member:
        one = worker(node, workers=member)
        assert one.optimizer.member is member
        assert one.optimizer.moving_rate == pytest.approx(0.9)
        other = smbox.join(node, "run", lease_s=LEASE_S)
        until(lambda: one.optimizer.moving_rate == pytest.approx(0.45))
        one.run(5)
        one.optimizer.close()
        assert member.count == 2
        other.leave()


def test_an_optimizer_that_nobody_uses_has_left(node):
    one = worker(node, workers=2, lease_s=WAIT_S)
    watcher = smbox.join(node, "run", lease_s=WAIT_S)
    assert watcher.count == 2
    del one
    until(lambda: watcher.count == 1)


def test_without_a_number_nothing_is_created(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SMBOX_RANK"):
        monkeypatch.delenv(name, raising=False)
    box = ModelBox()
    with pytest.raises(ConfigError, match="workers=N"):
        worker(box, workers=None)
    assert box.regions() == []
