from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import smbox
from smbox.errors import ConfigError, RequestTimeoutError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.downpour.ssp import SSP

torch.set_num_threads(1)


def worker(number: int, box: ModelBox, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    client = box.client(f"w{number}")
    return Descent(
        number, x, SSP(sgd, client, "run", rank=number, **({"workers": 1} | settings))
    )


@pytest.mark.parametrize("staleness", [0, 2])
def test_one_worker_is_the_sequential_algorithm(staleness: int):
    box = ModelBox()
    one = worker(0, box, staleness=staleness)
    one.run(9)
    x, c = start(), start()
    every = staleness + 1
    oracles.run(
        oracles.ssp(x, c, gradient(0), steps=9, lr=LR, fetches=range(every - 1, 9, every))
    )
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)


@pytest.mark.parametrize("staleness", [0, 2])
def test_several_workers_equal_the_replay_of_their_order(staleness: int):
    box = ModelBox()
    workers = [worker(i, box, staleness=staleness, workers=3) for i in range(3)]
    began = len(box.log)
    threads = [threading.Thread(target=w.run, args=(8,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = [e for e in box.log[began:] if e.region == "run.float32"]
    xs, c = [start() for _ in workers], start()
    runs = {}
    for i, x in enumerate(xs):
        mine = [e.op for e in events if e.client == f"w{i}"]
        fetched = [mine[:k].count("accumulate") - 1 for k, op in enumerate(mine) if op == "get"]
        runs[f"w{i}"] = oracles.ssp(x, c, gradient(i), steps=8, lr=LR, fetches=fetched)
    oracles.replay(runs, [e.client for e in events])
    np.testing.assert_allclose(box.attach("run.float32").get(), c, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)


def test_nobody_runs_further_ahead_than_the_staleness():
    box = ModelBox()
    fast, slow = (worker(i, box, staleness=2, workers=2, timeout_s=0.01) for i in range(2))
    fast.run(2)
    with pytest.raises(RequestTimeoutError, match="behind") as caught:
        fast.run()
    assert caught.value.facts["rank"] == 1
    slow.run(2)
    fast.optimizer.clock()
    assert fast.optimizer.clocks.mine == 4


def test_a_clock_follows_its_push_and_a_fetch_follows_the_wait():
    box = ModelBox()
    fast, _ = (worker(i, box, staleness=0, workers=2, timeout_s=0.01) for i in range(2))
    began = len(box.log)
    with pytest.raises(RequestTimeoutError, match="behind"):
        fast.run()
    log = [(entry.op, entry.region) for entry in box.log[began:]]
    changes = [("accumulate", "run.float32"), ("fetch_and_op", "run.clocks")]
    assert [each for each in log if each in changes] == changes
    assert ("get", "run.float32") not in log


@pytest.mark.shares
def test_a_worker_that_never_came_is_named(node: smbox.Box):
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    settings = {"workers": 2, "rank": 0, "staleness": 0, "timeout_s": 0.01}
    with SSP(sgd, node, "run", **settings) as alone:
        x.grad = torch.zeros_like(x)
        with pytest.raises(RequestTimeoutError, match="rank 1 never came"):
            alone.step()


def test_reads_see_ones_own_writes():
    box = ModelBox()
    one = worker(0, box, staleness=5)
    one.run(3)
    np.testing.assert_allclose(one.values(), box.attach("run.float32").get(), atol=1e-6)
    assert fetches_none(box)


def fetches_none(box: ModelBox) -> bool:
    ops = [e.op for e in box.log if e.region == "run.float32"]
    return ops.count("accumulate") == 3 and "get" not in ops[ops.index("accumulate") : -1]


def test_the_center_is_fetched_only_where_the_copy_is_too_old():
    box = ModelBox()
    one = worker(0, box, staleness=2)
    began = len(box.log)
    one.run(9)
    ops = [entry.op for entry in box.log[began:] if entry.region == "run.float32"]
    assert ops == ["accumulate", "accumulate", "accumulate", "get"] * 3


def test_a_worker_that_leaves_is_not_waited_for():
    box = ModelBox()
    one, other = (worker(i, box, staleness=0, workers=2) for i in range(2))
    other.optimizer.close()
    one.run(3)
    assert one.optimizer.clocks.mine == 3


def test_a_clock_may_be_ended_by_hand():
    box = ModelBox()
    one = worker(0, box, staleness=0, period=None)
    one.run(3)
    assert one.optimizer.clocks.mine == 0
    one.optimizer.clock()
    np.testing.assert_array_equal(one.values(), box.attach("run.float32").get())


def test_parameters_of_an_earlier_clock_are_fetched_again_at_the_next():
    box = ModelBox()
    one = worker(0, box, staleness=2)
    one.run(3)
    saved = one.optimizer.state_dict()
    one.run(6)
    one.optimizer.load_state_dict(saved)  # as a worker does that is restarted alone
    one.run()
    np.testing.assert_array_equal(one.values(), box.attach("run.float32").get())


def test_a_run_resumes_exactly():
    box, again = ModelBox(), ModelBox()
    whole = worker(0, box, staleness=2)
    whole.run(4)
    saved = whole.optimizer.state_dict()
    whole.run(4)
    rest = worker(0, again, staleness=2)
    rest.optimizer.load_state_dict(saved)
    rest.t = 4
    rest.run(4)
    np.testing.assert_array_equal(rest.values(), whole.values())


def test_parameters_of_another_memory_are_as_old_as_they_were():
    box, again = ModelBox(), ModelBox()
    one, rest = worker(0, box, staleness=2), worker(0, again, staleness=2)
    one.run(4)  # fetched at clock 3
    rest.optimizer.load_state_dict(one.optimizer.state_dict())
    began = len(again.log)
    rest.run(2)
    ops = [entry.op for entry in again.log[began:] if entry.region == "run.float32"]
    assert ops == ["accumulate", "accumulate", "get"]


def test_impossible_settings_are_refused():
    for settings in ({"staleness": -1}, {"period": 0}):
        with pytest.raises(ConfigError):
            worker(0, ModelBox(), **settings)


def test_a_model_that_is_loaded_after_wrapping_is_refused_before_it_is_pushed():
    box = ModelBox()
    one = worker(0, box, staleness=0)
    center = box.attach("run.float32").get()
    one.x.data.add_(1.0)
    with pytest.raises(ConfigError, match="load the model before"):
        one.run()
    np.testing.assert_array_equal(box.attach("run.float32").get(), center)


def test_the_center_in_the_workers_own_model_is_no_move():
    box = ModelBox()
    one, other = worker(0, box, staleness=9, workers=2), worker(1, box, staleness=9, workers=2)
    other.run(3)
    model = torch.nn.Module()
    model.x = one.x
    one.optimizer.center_into(model)
    before = box.attach("run.float32").get()
    step = gradient(0)(before, one.t) * np.float32(LR)
    one.run()
    after = box.attach("run.float32").get()
    np.testing.assert_allclose(after, before - step, rtol=0, atol=1e-6)
