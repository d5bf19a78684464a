from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.downpour.downpour import Downpour

torch.set_num_threads(1)


def worker(number: int, box: ModelBox, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(
        number, x, Downpour(sgd, box.client(f"w{number}"), "run", **({"workers": 1} | settings))
    )


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (3, 3), (2, 3), (1, 4), (4, 1)])
def test_one_worker_is_the_sequential_algorithm(n_push: int, n_fetch: int):
    box = ModelBox()
    one = worker(0, box, n_push=n_push, n_fetch=n_fetch)
    one.run(13)
    x, c = start(), start()
    settings = {"steps": 13, "lr": LR, "n_push": n_push, "n_fetch": n_fetch}
    oracles.run(oracles.downpour(x, c, gradient(0), **settings))
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)


def test_several_workers_equal_the_replay_of_their_order():
    box, settings = ModelBox(), {"n_push": 2, "n_fetch": 3}
    workers = [worker(i, box, **settings) for i in range(3)]
    began = len(box.log)
    threads = [threading.Thread(target=w.run, args=(12,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    xs, c = [start() for _ in workers], start()
    runs = {
        f"w{i}": oracles.downpour(x, c, gradient(i), steps=12, lr=LR, **settings)
        for i, x in enumerate(xs)
    }
    oracles.replay(runs, [entry.client for entry in box.log[began:]])
    np.testing.assert_allclose(box.attach("run.float32").get(), c, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)


def test_no_move_is_lost_however_workers_join_and_leave():
    box = ModelBox()
    for number in range(3):
        one = worker(number, box)
        before = box.attach("run.float32").get()
        np.testing.assert_array_equal(one.values(), before)
        one.run(4)
        one.optimizer.close()
        np.testing.assert_array_equal(one.values(), box.attach("run.float32").get())


def test_a_run_resumes_exactly_between_push_and_fetch():
    settings = {"n_push": 3, "n_fetch": 4}
    box, again = ModelBox(), ModelBox()
    whole = worker(0, box, **settings)
    whole.run(5)
    saved = whole.optimizer.state_dict()
    whole.run(6)
    rest = worker(0, again, **settings)
    rest.optimizer.load_state_dict(saved)
    rest.t = 5
    rest.run(6)
    np.testing.assert_array_equal(rest.values(), whole.values())
    np.testing.assert_array_equal(
        again.attach("run.float32").get(), box.attach("run.float32").get()
    )


def test_a_step_that_a_fetch_followed_is_still_pushed_at_the_end():
    box = ModelBox()
    one = worker(0, box, n_push=3)
    one.run()
    one.optimizer.close()
    wanted = start() - np.float32(LR) * gradient(0)(start(), 0)
    np.testing.assert_array_equal(box.attach("run.float32").get(), wanted)


def test_a_model_that_is_loaded_after_wrapping_is_refused_before_it_is_pushed():
    box = ModelBox()
    one = worker(0, box)
    model = torch.nn.Module()
    model.x = one.x
    model.load_state_dict({"x": torch.from_numpy(start())})  # what it holds: no difference
    one.run()
    saved, center = one.optimizer.state_dict(), box.attach("run.float32").get()
    one.optimizer.load_state_dict(saved)
    model.load_state_dict({"x": torch.ones(len(start()))})
    with pytest.raises(ConfigError, match="load the model before"):
        one.run()
    np.testing.assert_array_equal(box.attach("run.float32").get(), center)


def test_the_center_in_the_workers_own_model_is_no_move():
    box = ModelBox()
    one, other = worker(0, box), worker(1, box)
    model = torch.nn.Module()
    for _ in range(2):  # before the first step, and later
        other.run(3)
        model.x = one.x
        one.optimizer.center_into(model)
        before = box.attach("run.float32").get()
        np.testing.assert_array_equal(one.values(), before)
        step = gradient(0)(before, one.t) * np.float32(LR)
        one.run()
        after = box.attach("run.float32").get()
        np.testing.assert_allclose(after, before - step, rtol=0, atol=1e-6)


def test_both_directions_are_counted():
    one = worker(0, ModelBox(), n_push=1, n_fetch=2)
    one.run(4)
    stats = one.optimizer.stats()
    assert stats.exchanges == 4
    assert stats.nbytes == 6 * 4 * len(start())
    assert stats.staleness == {0: 4}


def test_a_fetch_without_a_push_counts_every_push_as_one_of_others():
    box = ModelBox()
    one, other = worker(0, box, n_push=2), worker(1, box)
    other.run()
    one.run(2)
    assert one.optimizer.stats().staleness == {1: 1, 0: 1}


@pytest.mark.parametrize(("n_push", "pushed"), [(1, 2), (100, 0)])
def test_an_exchange_that_fails_leaves_x_and_loses_no_move(n_push, pushed, monkeypatch):
    box = ModelBox()
    one = worker(0, box, n_push=n_push)
    one.run(2)
    before = one.values()

    def fail(*_args, out) -> None:
        out[: len(out) // 2] = 100.0
        raise ConnectionError("the memory is gone")

    with monkeypatch.context() as patch:
        patch.setattr(ModelRegion, "accumulate", fail)
        patch.setattr(ModelRegion, "get", fail)
        with pytest.raises(ConnectionError):
            one.run()
    moves = [np.float32(-LR) * gradient(0)(before, t) for t in range(pushed, 3)]
    np.testing.assert_array_equal(one.values(), before + moves[-1])
    one.optimizer.close()
    wanted = before + sum(moves)
    np.testing.assert_allclose(box.attach("run.float32").get(), wanted, rtol=0, atol=1e-6)


def test_batch_norm_buffers_are_averaged():
    box = ModelBox()
    model = torch.nn.BatchNorm1d(2)
    opt = Downpour(
        torch.optim.SGD(model.parameters(), lr=LR), box, "run", model=model, workers=1
    )
    model(torch.randn(4, 2) + 3).sum().backward()
    mean = model.running_mean.clone()
    opt.step()
    center = box.attach("run.buffers.float32").get()[:2]
    np.testing.assert_allclose(center, 0.45 * mean.numpy(), rtol=1e-6)


def test_impossible_settings_are_refused():
    for settings in ({"n_push": 0}, {"n_fetch": 0}):
        with pytest.raises(ConfigError):
            worker(0, ModelBox(), **settings)
