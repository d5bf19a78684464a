"""Ends of runs whose workers come to them at different times."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

import smbox
from smbox.errors import ConfigError, RequestTimeoutError
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent
from smbox_torch.elastic.eamsgd import EAMSGD
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.elastic.easgd_sync import SyncEASGD

torch.set_num_threads(1)
pytestmark = pytest.mark.shares

WAIT_S = 60.0


def test_after_a_finish_that_timed_out_only_finish_and_close_go_on(
    algorithm, own_box, worker, center
):
    settings = {"workers": 2, "lease_s": WAIT_S} | algorithm.settings
    one = worker(own_box, algorithm.make, rank=0, **settings)
    if not algorithm.waits_in_steps:
        one.run(3)
    with pytest.raises(RequestTimeoutError, match=r"rank 1 \(never came\)"):
        one.optimizer.finish(timeout_s=0.1)
    before, state = center(own_box), one.optimizer.state_dict()
    for refused in (one.run, partial(one.optimizer.load_state_dict, state)):
        with pytest.raises(ConfigError, match="has called finish"):
            refused()
    np.testing.assert_array_equal(center(own_box), before)
    two = worker(own_box, algorithm.make, rank=1, **settings)
    two.optimizer.close()
    one.optimizer.finish(timeout_s=WAIT_S)
    np.testing.assert_array_equal(
        one.values(), one.optimizer._evaluated_center().values()["float32"]
    )
    for refused in (one.run, partial(one.optimizer.load_state_dict, state)):
        with pytest.raises(ConfigError, match="closed"):
            refused()


def test_a_state_after_finish_has_none_of_the_others_steps_to_share(
    lazy, own_box, worker, center
):
    if lazy.waits_in_steps or lazy.make is EAMSGD:
        pytest.skip("it waits in steps, or moves with a learning rate of 0")
    settings = {"workers": 2, "lease_s": WAIT_S} | lazy.settings
    one, two = (worker(own_box, lazy.make, n, rank=n, **settings) for n in range(2))
    one.run(3)
    with pytest.raises(RequestTimeoutError):
        one.optimizer.finish(timeout_s=0.1)  # it has exchanged its steps
    two.run(3)
    two.optimizer.close()
    one.optimizer.finish(timeout_s=WAIT_S)
    again = worker(ModelBox(), lazy.make, **lazy.settings)
    again.optimizer.load_state_dict(one.optimizer.state_dict())
    again.optimizer.param_groups[0]["lr"] = 0.0
    again.run()
    again.optimizer.close()
    resumed = again.optimizer.center.values()["float32"]
    np.testing.assert_allclose(resumed, center(own_box), rtol=0, atol=1e-6)


def test_a_finish_with_an_invalid_timeout_exchanges_nothing(lazy, own_box, worker, center):
    one = worker(own_box, lazy.make, **lazy.settings)
    one.run(3)
    before = center(own_box)
    for timeout_s in (float("nan"), "3"):
        with pytest.raises(ConfigError, match="timeout_s must be a number"):
            one.optimizer.finish(timeout_s=timeout_s)
    np.testing.assert_array_equal(center(own_box), before)
    one.run()  # it goes on
    one.optimizer.finish(timeout_s=WAIT_S)


def test_after_finish_eval_keeps_what_is_loaded_into_the_model(algorithm, own_box, worker):
    one = worker(own_box, algorithm.make, **algorithm.settings)
    one.run(3)
    one.optimizer.finish()
    loaded = one.values() + 1.0
    with torch.no_grad():
        one.x.copy_(torch.from_numpy(loaded))
    one.optimizer.eval()
    np.testing.assert_array_equal(one.values(), loaded)
    one.optimizer.train()
    np.testing.assert_array_equal(one.values(), loaded)


def test_a_fast_worker_waits_for_a_slow_one_as_long_as_it_lives(
    own_box, monkeypatch, caplog, until, worker, center
):
    monkeypatch.setattr("smbox.meeting.MEET_TIMEOUT_S", 0.1)
    monkeypatch.setattr("smbox.meeting.WARNING_INTERVAL_S", 0.5)
    fast, slow = (worker(own_box, workers=2, lease_s=WAIT_S) for _ in range(2))
    fast.run(3)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(fast.optimizer.finish)
        until(lambda: "waits for rank 1 (host" in caplog.text)
        slow.run(12)
        assert not ending.done()
        slow.optimizer.finish()
        ending.result(WAIT_S)
    np.testing.assert_array_equal(fast.values(), center(own_box))
    np.testing.assert_array_equal(slow.values(), center(own_box))


def test_workers_that_meet_in_steps_finish_together_after_unequal_numbers_of_them(
    own_box, worker, center
):
    few, many = (
        worker(own_box, SyncEASGD, number=n, workers=2, rank=n, lease_s=WAIT_S, period=1)
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
    np.testing.assert_array_equal(few.values(), center(own_box))
    np.testing.assert_array_equal(many.values(), center(own_box))


def test_a_member_belongs_to_one_optimizer_at_a_time(own_box, worker):
    with smbox.join(own_box, "gan", lease_s=WAIT_S) as member:
        first = worker(own_box, workers=member)
        first.run(3)
        x = torch.nn.Parameter(torch.zeros(4))
        sgd = torch.optim.SGD([x], lr=LR)
        with pytest.raises(ConfigError, match="belongs to another optimizer"):
            EASGD(sgd, own_box, "second", workers=member)
        assert [info.name for info in own_box.regions() if info.name.startswith("second")] == []
        first.optimizer.close()
        assert member.progress == 3
        EASGD(sgd, own_box, "second", workers=member).close()
        third = EASGD(sgd, own_box, "second", workers=member)
        del third
        EASGD(sgd, own_box, "second", workers=member).close()
