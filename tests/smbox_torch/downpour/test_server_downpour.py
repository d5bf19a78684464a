from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import smbox
from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.downpour.server_downpour import ServerDownpour

torch.set_num_threads(1)


def worker(number: int, box: object, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(number, x, ServerDownpour(sgd, box, "run", **({"workers": 1} | settings)))


def adagrad(initial: float = 0.1):
    """Adagrad in plain numpy, with its sum of squares."""
    squares = np.full_like(start(), initial)

    def step(c, g):
        squares[:] += g * g
        c -= np.float32(LR) * g / (np.sqrt(squares) + np.float32(1e-10))

    return step


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (3, 3), (2, 3), (1, 4), (4, 1)])
def test_one_worker_is_the_sequential_algorithm(n_push: int, n_fetch: int):
    box = ModelBox()
    one = worker(0, box, n_push=n_push, n_fetch=n_fetch)
    one.run(13)
    x, c = start(), start()
    settings = {"steps": 13, "lr": LR, "n_push": n_push, "n_fetch": n_fetch}
    oracles.run(oracles.server_downpour(x, c, gradient(0), server=adagrad(), **settings))
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)


def test_several_workers_equal_the_replay_of_their_order():
    box, settings = ModelBox(), {"n_push": 2, "n_fetch": 3}
    workers = [worker(i, box.client(f"w{i}"), **settings) for i in range(3)]
    began = len(box.log)
    threads = [threading.Thread(target=w.run, args=(12,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    xs, c, server = [start() for _ in workers], start(), adagrad()
    runs = {
        f"w{i}": oracles.server_downpour(
            x, c, gradient(i), server=server, steps=12, lr=LR, **settings
        )
        for i, x in enumerate(xs)
    }
    oracles.replay(runs, [entry.client for entry in box.log[began:]])
    np.testing.assert_allclose(box.attach("run.float32").get(), c, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)


TORCH = {
    "momentum": (torch.optim.SGD, {"momentum": 0.5}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.5, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
    "adam": (torch.optim.Adam, {}),
}


@pytest.mark.parametrize("server", TORCH)
def test_one_worker_with_a_real_memory_is_torchs_optimizer(server: str):
    given = {"momentum": 0.5} if server in {"momentum", "nesterov"} else {}
    with smbox.local(memory="64MiB") as box:
        one = worker(0, box, server=server, settings=given)
        one.run(6)
    x = torch.nn.Parameter(torch.from_numpy(start()))
    make, settings = TORCH[server]
    other = Descent(0, x, make([x], lr=LR, **settings))
    other.run(6)
    np.testing.assert_allclose(one.values(), other.values(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("initial", [0.0, 0.5])
def test_adagrads_first_sum_is_a_setting(initial: float):
    box, settings = ModelBox(), {"initial_accumulator_value": initial}
    one = worker(0, box, settings=settings)
    one.run(6)
    assert list(box.attach("run.float32/adagrad.squares").shape) == [len(start())]
    x, c = start(), start()
    by = {"steps": 6, "lr": LR, "n_push": 1, "n_fetch": 1, "server": adagrad(initial)}
    oracles.run(oracles.server_downpour(x, c, gradient(0), **by))
    np.testing.assert_array_equal(one.values(), x)
    torchs = torch.nn.Parameter(torch.from_numpy(start()))
    other = Descent(0, torchs, torch.optim.Adagrad([torchs], lr=LR, **settings))
    other.run(6)
    np.testing.assert_allclose(one.values(), other.values(), rtol=0, atol=1e-6)


def test_a_tiny_first_gradient_moves_the_center_little():
    x = torch.nn.Parameter(torch.zeros(3))
    opt = ServerDownpour(torch.optim.SGD([x], lr=0.5), ModelBox(), "run", workers=1)
    x.grad = torch.tensor([1e-3, 0.0, 1.0])
    opt.step()
    expected = [-0.5 * g / (0.1 + g * g) ** 0.5 for g in (1e-3, 0.0, 1.0)]
    assert x.tolist() == pytest.approx(expected)  # without the 0.1 the first is -0.5


def test_both_directions_are_counted():
    one = worker(0, ModelBox(), n_push=1, n_fetch=2)
    one.run(4)
    stats = one.optimizer.stats()
    assert (stats.exchanges, stats.nbytes) == (4, 6 * 4 * len(start()))


def test_a_later_worker_finds_the_sum_as_it_is():
    box = ModelBox()
    one = worker(0, box)
    one.run(3)
    squares = box.attach("run.float32/adagrad.squares").get()
    worker(1, box)
    np.testing.assert_array_equal(box.attach("run.float32/adagrad.squares").get(), squares)


@pytest.mark.parametrize("server", ["adagrad", "nesterov"])
def test_a_run_resumes_exactly_between_push_and_fetch(server: str):
    settings = {"n_push": 3, "n_fetch": 4, "server": server}
    box, again = ModelBox(), ModelBox()
    whole = worker(0, box, **settings)
    whole.run(5)
    saved = whole.optimizer.state_dict()
    whole.run(8)
    rest = worker(0, again, **settings)
    rest.optimizer.load_state_dict(saved)
    rest.t = 5
    rest.run(8)
    np.testing.assert_array_equal(rest.values(), whole.values())
    np.testing.assert_array_equal(
        again.attach("run.float32").get(), box.attach("run.float32").get()
    )


def test_the_servers_step_size_follows_a_scheduler():
    box = ModelBox()
    one = worker(0, box, server="momentum", settings={"momentum": 0.0})
    scheduler = torch.optim.lr_scheduler.StepLR(one.optimizer, 1, gamma=0.5)
    for rate in (LR, LR / 2):
        before = box.attach("run.float32").get()
        step = gradient(0)(before, one.t)
        one.run()
        scheduler.step()
        after = box.attach("run.float32").get()
        np.testing.assert_array_equal(after, before - np.float32(rate) * step)


def test_a_step_size_of_its_own_stays():
    one = worker(0, ModelBox(), lr=0.5)
    one.optimizer.param_groups[0]["lr"] = 0.1
    assert one.optimizer.server_lr == 0.5


def test_several_learning_rates_need_one_for_the_server():
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [{"params": [p], "lr": 0.5}, {"params": [q], "lr": 0.25}]
    with pytest.raises(ConfigError, match="give the server's lr"):
        ServerDownpour(torch.optim.SGD(groups, lr=1.0), ModelBox(), "run", workers=1)
    assert (
        ServerDownpour(
            torch.optim.SGD(groups, lr=1.0), ModelBox(), "run", lr=1.0, workers=1
        ).steps
        == 0
    )


def test_a_change_before_the_center_is_taken_is_pushed():
    box, model = ModelBox(), torch.nn.Module()
    one = worker(0, box, server="momentum", settings={"momentum": 0.0})
    one.run()
    center = box.attach("run.float32").get()
    one.x.data.add_(1.0)
    model.x = one.x
    one.optimizer.center_into(model)
    wanted = center + 1 - np.float32(LR) * gradient(0)(center, one.t)
    one.run()
    np.testing.assert_allclose(box.attach("run.float32").get(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_parameter_without_a_gradient_stays(is_frozen: bool):
    """As in torch: a zero gradient would let the inner optimizer decay it."""
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    p.requires_grad_(not is_frozen)
    sgd = torch.optim.SGD([p, q], lr=0.5, weight_decay=0.5)
    settings = {"server": "nesterov", "n_fetch": 4, "workers": 1}
    opt = ServerDownpour(sgd, ModelBox(), "run", **settings)
    for _ in range(2):
        opt.zero_grad()
        q.sum().backward()
        opt.step()
    assert p.tolist() == [1, 1]
    assert p.grad is None
    assert q.tolist() != [1, 1]


def test_other_dtypes_are_saved_and_resumed(tmp_path):
    with smbox.local(memory="64MiB") as box:
        x = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        opt = ServerDownpour(torch.optim.SGD([x], lr=0.5), box, "run", n_push=2, workers=1)
        x.sum().backward()
        opt.step()
        torch.save(opt.state_dict(), tmp_path / "state")
        opt.load_state_dict(torch.load(tmp_path / "state"))
        assert opt.gathered[0].astype(np.float32).tolist() == [1, 1, 1, 1]


def test_impossible_settings_are_refused():
    box = ModelBox()
    for settings in (
        {"n_push": 0},
        {"n_fetch": 0},
        {"server": "lbfgs"},
        {"lr": -1.0},
        {"settings": {"momentum": 0.5}},
        {"settings": {"initial_accumulator_value": -1.0}},
    ):
        with pytest.raises(ConfigError):
            worker(0, box, **settings)
    assert box.regions() == []


def test_who_maximizes_is_refused():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(3))]} for _ in range(2)]
    groups[1]["maximize"] = True
    sgd = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(ConfigError, match="negate the loss"):
        ServerDownpour(sgd, ModelBox(), "run", workers=1)


@pytest.mark.parametrize(("saved_by", "server"), [("adam", "adagrad"), ("adagrad", "adam")])
def test_a_state_of_another_server_is_refused_and_changes_nothing(saved_by: str, server: str):
    with smbox.local(memory="64MiB") as box:
        saving = worker(0, box, server=saved_by)
        saving.run(2)
        saved = saving.optimizer.state_dict()
    with smbox.local(memory="64MiB") as box:
        loading = worker(0, box, server=server)
        with pytest.raises(ConfigError, match="server="):
            loading.optimizer.load_state_dict(saved)
        assert loading.optimizer.steps == 0
        loading.run()
