"""Optimizers that join a run: rates, the last exchange, and ending together."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

import smbox
from smbox import heartbeat
from smbox.errors import ConfigError, LeaseLostError
from smbox.testing.interrupts import interrupted
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import start
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.elastic.easgd_sync import SyncEASGD
from smbox_torch.elastic.seasgd import SEASGD
from smbox_torch.optimizer import joined
from smbox_torch.workers import joining, team

torch.set_num_threads(1)
pytestmark = pytest.mark.shares

WAIT_S = 60.0
LEASE_S = 0.6


def test_closing_shares_what_the_period_left(lazy, worker, center):
    box = ModelBox()
    one = worker(box, lazy.make, **lazy.settings)
    first = center(box)
    one.run(9)
    np.testing.assert_allclose(center(box), first, rtol=0, atol=1e-6)
    one.optimizer.close()
    assert np.abs(center(box) - first).max() > 1e-3
    shared = center(box)
    one.optimizer.close()
    np.testing.assert_array_equal(center(box), shared)


def test_four_steps_of_a_longer_period_reach_the_center(worker, center):
    box, alone = ModelBox(), worker(ModelBox(), period=1000)  # it exchanges with nobody
    alone.run(4)
    one = worker(box, period=10)
    with one.optimizer:
        one.run(4)
        before = center(box)
    np.testing.assert_array_equal(before, start())
    np.testing.assert_allclose(center(box), 0.55 * start() + 0.45 * alone.values(), atol=1e-5)


def test_after_an_error_or_on_demand_nothing_is_shared(lazy, worker, center):
    for ask in (True, False):
        box = ModelBox()
        one = worker(box, lazy.make, **lazy.settings)
        first = center(box)
        one.run(9)
        if ask:
            one.optimizer.close(exchange=False)
        else:
            with pytest.raises(KeyError), one.optimizer:
                raise KeyError("of the loop")
        np.testing.assert_allclose(center(box), first, rtol=0, atol=1e-6)


def test_finish_shares_the_rest_and_leaves_the_center_in_the_model(algorithm, worker, center):
    box = ModelBox()
    one = worker(box, algorithm.make, **algorithm.settings)
    first = center(box)
    one.run(9)
    best = one.optimizer._evaluated_center()
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


def test_workers_finish_together(own_box, run, until, worker, center):
    one, two = (worker(own_box, number=n, workers=2, lease_s=WAIT_S) for n in range(2))
    one.run(4)
    two.run(7)
    first = threading.Thread(target=one.optimizer.finish, kwargs={"timeout_s": WAIT_S})
    first.start()
    until(lambda: two.optimizer.member.read().words[0, 2] != 0)
    two.optimizer.finish(timeout_s=WAIT_S)
    first.join(WAIT_S)
    np.testing.assert_array_equal(one.values(), center(own_box))
    np.testing.assert_array_equal(two.values(), center(own_box))
    assert own_box.attach(f"{run}.members").get()[:2, 0].all()


def test_finish_waits_neither_for_the_dead_nor_for_those_who_left(own_box, worker):
    one, dead, left = (worker(own_box, workers=3, lease_s=LEASE_S) for _ in range(3))
    heartbeat.drop(dead.optimizer.member)
    left.optimizer.close()
    one.optimizer.finish(timeout_s=WAIT_S)


@pytest.mark.parametrize("kind", [SEASGD, SyncEASGD])
def test_rates_by_default_follow_who_is_there(kind, own_box, until, worker):
    one = worker(own_box, kind, workers=2, lease_s=LEASE_S)
    assert one.optimizer.moving_rate == pytest.approx(0.45)
    two = worker(own_box, kind, workers=2, lease_s=LEASE_S)
    with pytest.warns(UserWarning, match="this is worker 3.*first close"):
        three = worker(own_box, kind, workers=2, lease_s=LEASE_S)
    until(lambda: one.optimizer.moving_rate == pytest.approx(0.3))
    three.optimizer.close()
    until(lambda: one.optimizer.moving_rate == pytest.approx(0.45))
    heartbeat.drop(two.optimizer.member)
    until(lambda: one.optimizer.moving_rate == pytest.approx(0.9))


@pytest.mark.parametrize("kind", [SEASGD, SyncEASGD])
def test_a_rate_by_default_is_not_warned_of_when_others_have_left(kind, own_box, worker):
    for other in [worker(own_box, kind, workers=2, lease_s=LEASE_S) for _ in range(2)]:
        other.optimizer.close()
    one = worker(own_box, kind, workers=2, lease_s=LEASE_S)  # a warning would be an error
    assert one.optimizer.moving_rate == pytest.approx(0.9)


def test_a_rate_that_was_given_stays(own_box, worker):
    one = worker(own_box, workers=4, moving_rate=0.125, lease_s=LEASE_S)
    assert one.optimizer.moving_rate == 0.125
    assert one.optimizer.team.workers == 4


def test_a_worker_that_was_replaced_exchanges_nothing(own_box, until, worker, center):
    one, two = (worker(own_box, workers=2, period=1, lease_s=LEASE_S) for _ in range(2))
    two.run(2)
    heartbeat.drop(two.optimizer.member)
    until(lambda: one.optimizer.member.count == 1)
    successor = worker(own_box, workers=2, period=1, lease_s=LEASE_S)
    assert successor.optimizer.rank == 1
    assert successor.optimizer.steps == 1  # what the second exchange told
    before = center(own_box)
    with pytest.raises(LeaseLostError):
        two.run()
    np.testing.assert_array_equal(center(own_box), before)


def test_a_member_of_the_users_counts_and_stays(own_box, run, until, worker):
    with smbox.join(own_box, run, lease_s=LEASE_S) as member:
        one = worker(own_box, SEASGD, workers=member)
        assert one.optimizer.member is member
        assert one.optimizer.moving_rate == pytest.approx(0.9)
        other = smbox.join(own_box, run, lease_s=LEASE_S)
        until(lambda: one.optimizer.moving_rate == pytest.approx(0.45))
        one.run(5)
        one.optimizer.close()
        assert member.count == 2
        other.leave()


def test_an_optimizer_that_nobody_uses_has_left(own_box, run, until, worker):
    one = worker(own_box, workers=2, lease_s=WAIT_S)
    watcher = smbox.join(own_box, run, lease_s=WAIT_S)
    assert watcher.count == 2
    del one
    until(lambda: watcher.count == 1)


def test_without_a_number_nothing_is_created(monkeypatch, worker):
    for name in ("RANK", "WORLD_SIZE", "SMBOX_RANK"):
        monkeypatch.delenv(name, raising=False)
    box = ModelBox()
    with pytest.raises(ConfigError, match="workers=N"):
        worker(box, workers=None)
    assert box.regions() == []


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection, whose finalizers could be interrupted instead of the job."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_constructor_that_was_interrupted_at_any_line_has_left(open_box):
    box, at, is_hit = open_box(), 0, True
    files = tuple(module.__file__ for module in (joined, joining, team))

    made: list[EASGD] = []

    def wrap(name: str) -> None:
        x = torch.nn.Parameter(torch.zeros(1))
        made.append(EASGD(torch.optim.SGD([x], lr=1.0), box, name, workers=2))

    while is_hit:
        at += 1
        is_hit = interrupted(at, partial(wrap, f"run{at}"), files)
        if is_hit:
            wrap(f"run{at}")
        assert made[-1].rank == 0, at
        made[-1].close()
    assert at > 30


def test_a_constructor_whose_warning_is_an_error_has_left(open_box):
    box = open_box()
    with smbox.join(box, "run"):
        x = torch.nn.Parameter(torch.zeros(1))
        with pytest.raises(UserWarning, match="worker 2"):
            EASGD(torch.optim.SGD([x], lr=1.0), box, "run", workers=1)
        with smbox.join(box, "run") as member:
            assert member.rank == 1


def test_a_close_during_an_evaluation_shares_the_rest_of_the_own_steps(worker, center):
    box = ModelBox()
    one = worker(box, period=10)
    one.run(3)
    total = one.values() + center(box)
    one.optimizer.eval()
    one.optimizer.close()
    assert not np.array_equal(center(box), start())
    np.testing.assert_allclose(one.values() + center(box), total, rtol=0, atol=1e-6)


def test_a_second_close_shares_nothing(worker, center):
    box = ModelBox()
    one = worker(box, period=10)
    one.run(3)
    one.optimizer.close(exchange=False)
    one.optimizer.close()
    np.testing.assert_array_equal(center(box), start())


def test_another_inner_optimizer_continues_from_the_center(worker, center, run):
    box = ModelBox()
    one, other = worker(box, workers=2), worker(box, number=1, workers=2)
    one.run(3)
    other.run(3)
    one.optimizer.close()
    shared = center(box)
    asgd = torch.optim.ASGD([one.x], lr=0.01, t0=0)
    with EASGD(asgd, box, run, workers=2) as optimizer:
        assert optimizer.rank == one.optimizer.rank
        np.testing.assert_array_equal(one.values(), shared)
        one.x.grad = torch.ones_like(one.x)
        optimizer.step()
        assert optimizer.state[one.x]["ax"].shape == one.x.shape
        other.run(1)
    assert not np.array_equal(center(box), shared)


def test_a_model_that_was_shared_before_leaves_that_memory(run):
    model = torch.nn.Linear(2, 1).share_memory()
    shared = model.weight.detach()  # as the process has it that starts the workers
    first = shared.clone()
    with EASGD(torch.optim.SGD(model.parameters(), lr=0.1), ModelBox(), run, workers=1) as opt:
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
    assert not torch.equal(model.weight, first)
    assert torch.equal(shared, first)
