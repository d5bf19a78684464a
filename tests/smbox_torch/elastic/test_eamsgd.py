from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import HALF, LR, Descent, gradient, start
from smbox_torch.elastic.eamsgd import EAMSGD
from smbox_torch.elastic.easgd import EASGD

torch.set_num_threads(1)
SETTINGS = {"steps": 10, "lr": LR, "moving_rate": 0.3, "period": 2}


def worker(number: int, box: ModelBox, kind: type = EAMSGD, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    wrapped = kind(
        sgd,
        box.client(f"w{number}"),
        "run",
        period=2,
        moving_rate=0.3,
        **({"workers": 1} | settings),
    )
    return Descent(number, x, wrapped)


def position(descent: Descent) -> np.ndarray:
    """x itself: the model holds the point ahead of it."""
    return descent.optimizer.state_dict()["extra"]["x"][0].numpy()


@pytest.mark.parametrize("overlap", [False, True])
def test_one_worker_is_the_sequential_algorithm(overlap: bool):
    box = ModelBox()
    one = worker(0, box, momentum=HALF, overlap=overlap)
    ask, gate = one.optimizer.request_moves, threading.Event()
    one.optimizer.request_moves = lambda xs, moves: (gate.wait(), ask(xs, moves))
    gate.set()
    one.run()  # it begins with an exchange, and waits for it
    for _ in range(9):
        gate.clear()
        one.run()
        gate.set()  # from here to the next step the model holds y
        one.optimizer.state_dict()  # waits for it
    one.optimizer.close()
    x, c = start(), start()
    steps = oracles.eamsgd(x, c, gradient(0), momentum=HALF, **SETTINGS)
    oracles.run(oracles.shared(steps, x, c, moving_rate=0.3))
    np.testing.assert_array_equal(position(one), x)
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)


def test_several_workers_equal_the_replay_of_their_order():
    box = ModelBox()
    workers = [worker(i, box, momentum=0.9) for i in range(3)]
    for turn in np.random.default_rng(5).permutation(np.repeat(np.arange(3), 10)):
        workers[turn].run()
    xs, c = [start() for _ in workers], start()
    runs = {
        f"w{i}": oracles.eamsgd(x, c, gradient(i), momentum=0.9, **SETTINGS)
        for i, x in enumerate(xs)
    }
    oracles.replay(runs, box.order("run.float32", "elastic"))
    np.testing.assert_allclose(box.attach("run.float32").get(), c, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(position(one), x, rtol=0, atol=1e-6)


def test_without_momentum_it_is_easgd():
    boxes = ModelBox(), ModelBox()
    one, other = worker(0, boxes[0], momentum=0.0), worker(0, boxes[1], EASGD)
    one.run(8)
    other.run(8)
    np.testing.assert_array_equal(one.values(), other.values())


def test_weight_decay_is_added_ahead_of_x():
    x = torch.nn.Parameter(torch.ones(3))
    opt = EAMSGD(
        torch.optim.SGD([x], lr=0.5, weight_decay=0.25),
        ModelBox(),
        "run",
        momentum=HALF,
        workers=1,
    )
    x.grad = torch.zeros(3)
    opt.step()
    assert x.tolist() == pytest.approx([1 - 0.125 * (1 + HALF)] * 3)


def test_each_group_has_its_own_learning_rate():
    xs = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [x], "lr": lr} for x, lr in zip(xs, (0.5, 0.125), strict=True)]
    opt = EAMSGD(torch.optim.SGD(groups), ModelBox(), "run", momentum=HALF, workers=1)
    for x in xs:
        x.grad = torch.ones(2)
    opt.step()
    for x, lr in zip(xs, (0.5, 0.125), strict=True):
        assert x.tolist() == [1 - lr * (1 + HALF)] * 2


def test_the_default_momentum_is_the_measured_one():
    ends = []
    for settings in ({}, {"momentum": 0.9}):
        one = worker(0, ModelBox(), **settings)
        one.run(5)
        ends.append(one.values().tolist())
    assert ends[0] == ends[1]


def test_weight_decay_leaves_the_gradient_as_it_is():
    x = torch.nn.Parameter(torch.ones(3))
    sgd = torch.optim.SGD([x], lr=0.25, weight_decay=0.5)
    opt = EAMSGD(sgd, ModelBox(), "run", momentum=HALF, period=4, workers=1)
    x.grad = torch.full((3,), 2.0)
    for _ in range(2):  # steps twice on one gradient, as gradient-norm probes do
        opt.step()
        assert x.grad.tolist() == [2.0] * 3
    x_, v = 1.0, 0.0
    for _ in range(2):
        v = HALF * v - 0.25 * (2.0 + 0.5 * (x_ + HALF * v))
        x_ += v
    assert x.tolist() == pytest.approx([x_ + HALF * v] * 3)


def test_weight_decay_of_a_sparse_gradient_is_refused_before_anything_happens():
    table = torch.nn.Embedding(4, 2, sparse=True)
    box, before = ModelBox(), table.weight.tolist()
    sgd = torch.optim.SGD(table.parameters(), lr=0.1, weight_decay=0.1)
    opt = EAMSGD(sgd, box, "run", workers=1)
    table(torch.tensor([1, 3])).sum().backward()
    done = len(box.log)
    with pytest.raises(ConfigError, match="weight_decay=0"):
        opt.step()
    assert (len(box.log), table.weight.tolist()) == (done, before)
    opt.param_groups[0]["weight_decay"] = 0.0
    opt.step()
    assert table.weight.tolist() != before


def test_a_model_of_16_bits_holds_y_exchanges_x_and_follows_what_is_loaded():
    box, y = ModelBox(), torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    settings = {"momentum": HALF, "period": 2, "moving_rate": HALF, "workers": 1}
    opt = EAMSGD(torch.optim.SGD([y], lr=0.25), box, "run", **settings)
    y.grad = torch.ones_like(y)
    opt.step()  # v = -0.25, x = 0.75
    assert y.item() == 0.625
    y.data.fill_(2.0)  # x = 2.125
    y.grad.zero_()
    opt.step()  # v = -0.125, x = 2
    assert y.item() == 1.9375
    opt.step()  # both move to 1.5; v = -0.0625, x = 1.4375
    assert box.attach("run.bfloat16").get().tolist() == [1.5]
    assert y.item() == 1.40625
    assert opt.stats().steps == 3


def test_a_step_keeps_no_gradient():
    one = worker(0, ModelBox())
    one.run()
    gradient = weakref.ref(one.x.grad)
    one.optimizer.zero_grad()
    assert gradient() is None


def test_a_run_resumes_exactly():
    box, again = ModelBox(), ModelBox()
    whole = worker(0, box, momentum=0.9)
    whole.run(5)
    saved = whole.optimizer.state_dict()
    whole.run(5)
    rest = worker(0, again, momentum=0.9)
    rest.optimizer.load_state_dict(saved)
    rest.t = 5
    rest.run(5)
    np.testing.assert_array_equal(rest.values(), whole.values())
    np.testing.assert_array_equal(position(rest), position(whole))


@pytest.mark.parametrize("overlap", [False, True])
def test_an_exchange_by_hand_moves_x_and_center_towards_each_other(overlap: bool):
    box = ModelBox()
    one = worker(0, box, momentum=0.9, overlap=overlap)
    one.run(5)
    center = box.attach("run.float32")
    before, c = position(one) + center.get(), center.get()
    one.optimizer.exchange()
    one.optimizer.close(exchange=False)
    assert np.abs(center.get() - c).max() > 1e-3
    extra = one.optimizer.state_dict()["extra"]
    np.testing.assert_allclose(position(one) + center.get(), before, rtol=0, atol=1e-5)
    y = extra["x"][0] + 0.9 * extra["v"][0]
    np.testing.assert_allclose(one.values(), y.numpy(), rtol=0, atol=1e-6)


def test_what_is_loaded_into_the_model_is_taken_over():
    lr, t = np.float32(LR), 5
    one = worker(0, ModelBox(), momentum=0.9)
    one.run(t)
    loaded = torch.arange(len(start())) / 7
    model = torch.nn.Module()
    model.x = one.x
    model.load_state_dict({"x": loaded})
    one.run(1)
    x = loaded.numpy() - lr * gradient(0)(loaded.numpy(), t)
    np.testing.assert_allclose(position(one), x, rtol=0, atol=1e-5)


def test_loading_what_the_model_holds_changes_nothing():
    one, other = (worker(0, ModelBox(), momentum=0.9) for _ in range(2))
    for each in (one, other):
        each.run(3)
    with torch.no_grad():
        other.x.copy_(other.x.clone())
    for each in (one, other):
        each.run(3)
    np.testing.assert_array_equal(position(one), position(other))


def test_other_optimizers_and_settings_that_would_be_ignored_are_refused():
    class Own(torch.optim.SGD):
        """May step otherwise."""

    x = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(TypeError, match="optimizer"):
        EAMSGD(None, ModelBox(), "run", workers=1)
    for inner in (torch.optim.Adam([x]), torch.optim.RMSprop([x], lr=0.1), Own([x], lr=0.1)):
        with pytest.raises(ConfigError, match=r"torch\.optim\.SGD"):
            EAMSGD(inner, ModelBox(), "run", workers=1)
    for settings in ({"momentum": 0.9}, {"maximize": True}, {"dampening": 0.5}):
        with pytest.raises(ConfigError, match=f"{next(iter(settings))}="):
            EAMSGD(torch.optim.SGD([x], lr=0.1, **settings), ModelBox(), "run", workers=1)
    with pytest.raises(ConfigError, match="momentum"):
        EAMSGD(torch.optim.SGD([x], lr=0.1), ModelBox(), "run", momentum=1.0, workers=1)


def test_momentum_that_a_scheduler_or_a_loaded_state_sets_is_refused_at_the_step():
    box, x = ModelBox(), torch.nn.Parameter(torch.ones(2))
    opt = EAMSGD(torch.optim.SGD([x], lr=0.1), box, "run", workers=1)
    plain = opt.inner.state_dict()
    torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=9)
    x.grad, done = torch.ones(2), len(box.log)
    with pytest.raises(ConfigError, match="cycle_momentum=False"):
        opt.step()
    assert (len(box.log), x.tolist()) == (done, [1.0, 1.0])
    opt.load_state_dict(plain)
    opt.step()
    assert opt.steps == 1


def test_a_state_during_an_evaluation_changes_nothing():
    one, other = (worker(0, ModelBox(), momentum=0.9) for _ in range(2))
    for each in (one, other):
        each.run(3)
    other.optimizer.eval()
    other.optimizer.state_dict()
    other.optimizer.train()
    np.testing.assert_array_equal(position(one), position(other))


def test_an_exchange_that_is_refused_changes_neither_the_model_nor_x():
    one = worker(0, ModelBox(), momentum=0.9)
    one.run(3)
    x = position(one)
    one.optimizer.eval()
    center = one.values()
    with pytest.raises(ConfigError, match="holds the center"):
        one.optimizer.exchange()
    np.testing.assert_array_equal(one.values(), center)
    np.testing.assert_array_equal(position(one), x)
