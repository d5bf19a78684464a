from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.downpour.mdownpour import MDownpour
from smbox_torch.downpour.pending_update import PendingUpdate

torch.set_num_threads(1)


def worker(number: int, box: ModelBox, momentum: float = 0.9) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    client = box.client(f"w{number}")
    return Descent(number, x, MDownpour(sgd, client, "run", momentum=momentum, workers=1))


def replayed(order: list[str], count: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    xs, c, v = [start() for _ in range(count)], start(), np.zeros_like(start())
    runs = {
        f"w{i}": oracles.mdownpour(x, c, v, gradient(i), steps=8, lr=LR, momentum=0.9)
        for i, x in enumerate(xs)
    }
    oracles.replay(runs, order)
    return xs, c, v


def test_one_worker_is_the_sequential_algorithm():
    box = ModelBox()
    one = worker(0, box)
    one.run(8)
    (x,), c, v = replayed(["w0"] * 16, 1)
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)
    np.testing.assert_array_equal(box.attach("run.velocity.float32").get(), v)


def test_several_workers_equal_the_replay_of_their_order():
    box = ModelBox()
    workers = [worker(i, box) for i in range(3)]
    began = len(box.log)
    for turn in np.random.default_rng(5).permutation(np.repeat(np.arange(3), 8)):
        workers[turn].run()
    xs, c, v = replayed([entry.client for entry in box.log[began:]], 3)
    np.testing.assert_allclose(box.attach("run.float32").get(), c, rtol=0, atol=1e-6)
    np.testing.assert_allclose(box.attach("run.velocity.float32").get(), v, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)


def test_one_worker_is_torchs_nesterov():
    box = ModelBox()
    one = worker(0, box)
    x = torch.nn.Parameter(torch.from_numpy(start()))
    torchs = Descent(0, x, torch.optim.SGD([x], lr=LR, momentum=0.9, nesterov=True))
    one.run(20)
    torchs.run(20)
    np.testing.assert_allclose(one.values(), torchs.values(), rtol=0, atol=1e-5)


def test_a_checkpoint_holds_the_velocity():
    box, again = ModelBox(), ModelBox()
    whole = worker(0, box)
    whole.run(5)
    saved = whole.optimizer.state_dict()
    whole.run(5)
    rest = worker(0, again)
    rest.optimizer.load_state_dict(saved)
    rest.t = 5
    rest.run(5)
    np.testing.assert_array_equal(rest.values(), whole.values())


def test_who_joins_late_begins_ahead_of_the_center_by_the_shared_velocity():
    box = ModelBox()
    one = worker(0, box)
    one.run(5)
    late = worker(1, box)
    c, v = (box.attach(name).get() for name in ("run.float32", "run.velocity.float32"))
    assert np.abs(v).max() > 0.1
    np.testing.assert_allclose(late.values(), c + np.float32(0.9) * v, rtol=0, atol=1e-6)
    np.testing.assert_allclose(late.values(), one.values(), rtol=0, atol=1e-6)
    late.run(1)  # its lead is no step of its own
    expected = np.float32(0.9) * v - np.float32(LR) * gradient(1)(one.values(), 0)
    np.testing.assert_allclose(
        box.attach("run.velocity.float32").get(), expected, rtol=0, atol=1e-6
    )


def test_an_interrupt_after_the_fetch_repeats_no_step_of_others(monkeypatch):
    box = ModelBox()
    one, other = (worker(number, box, momentum=0.0) for number in range(2))
    one.run()
    other.run(5)

    def interrupt(_: PendingUpdate) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PendingUpdate, "rebase", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.run()
    c = box.attach("run.float32").get()
    step = -LR * gradient(0)(one.values(), one.t)
    one.run()
    np.testing.assert_allclose(box.attach("run.float32").get(), c + step, rtol=0, atol=1e-6)


def test_momentum_is_below_one():
    with pytest.raises(ConfigError):
        worker(0, ModelBox(), momentum=1.0)


@pytest.mark.parametrize("setting", ["n_push", "n_fetch"])
def test_each_step_is_pushed_and_fetched(setting: str):
    """A setting that says otherwise would not be followed."""
    box, x = ModelBox(), torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    with pytest.raises(TypeError, match=setting):
        MDownpour(sgd, box, "run", workers=1, **{setting: 2})
    assert box.regions() == []


def test_momentum_that_a_scheduler_sets_is_refused_at_the_step():
    box = ModelBox()
    one = worker(0, box)
    torch.optim.lr_scheduler.OneCycleLR(one.optimizer, max_lr=LR, total_steps=9)
    began = len(box.log)
    with pytest.raises(ConfigError, match="cycle_momentum=False"):
        one.run()
    assert (len(box.log), one.values().tolist()) == (began, start().tolist())


def test_bytes_of_the_velocity_count():
    one = worker(0, ModelBox())
    one.run(3)
    assert one.optimizer.stats().nbytes == 3 * 4 * 4 * len(start())


def test_a_change_between_two_steps_is_an_own_push_of_as_many_bytes():
    one = worker(0, ModelBox())
    one.run()
    one.x.data.add_(1.0)
    one.run()
    stats = one.optimizer.stats()
    assert (stats.nbytes, stats.staleness) == ((2 * 4 + 1) * 4 * len(start()), {0: 2})


def test_a_change_before_the_center_is_taken_enters_the_center_once_and_not_the_velocity():
    box, model = ModelBox(), torch.nn.Module()
    one = worker(0, box, momentum=0.5)
    one.run()
    c, v = (box.attach(name).get() for name in ("run.float32", "run.velocity.float32"))
    one.x.data.add_(1.0)
    model.x = one.x
    one.optimizer.center_into(model)
    v = np.float32(0.5) * v - np.float32(LR) * gradient(0)(c, one.t)
    one.run()
    close = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose(box.attach("run.velocity.float32").get(), v, **close)
    np.testing.assert_allclose(box.attach("run.float32").get(), c + 1 + v, **close)


def test_a_change_is_not_pushed_if_the_step_is_refused():
    box, model = ModelBox(), torch.nn.Linear(2, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    opt = MDownpour(sgd, box, "run", workers=1, model=model)
    opt.step()
    center = box.attach("run.float32").get()
    with torch.no_grad():
        model.weight.add_(1.0)
    model.weight = torch.nn.Parameter(torch.zeros(1, 2))
    with pytest.raises(ConfigError, match="was replaced"):
        opt.step()
    np.testing.assert_array_equal(box.attach("run.float32").get(), center)
