from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, SIZE, Descent, gradient, start
from smbox_torch import EASGD

torch.set_num_threads(1)


def worker(number: int, box: ModelBox, begin: np.ndarray | None = None, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start() if begin is None else begin))
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(
        number, x, EASGD(sgd, box.client(f"w{number}"), "run", **({"workers": 1} | settings))
    )


def finish(descent: Descent, steps: int) -> None:
    descent.run(steps)
    descent.optimizer.close(exchange=False)


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("period", [1, 3])
def test_one_worker_is_the_sequential_algorithm(overlap: bool, period: int):
    box = ModelBox()
    one = worker(0, box, period=period, moving_rate=0.3, overlap=overlap)
    one.run(10)
    one.optimizer.close()
    x, c = start(), start()
    settings = {"steps": 10, "lr": LR, "moving_rate": 0.3, "period": period}
    found = oracles.easgd(x, c, gradient(0), **settings)
    oracles.run(oracles.shared(found, x, c, moving_rate=0.3))
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(center(box), c)
    assert not np.array_equal(c, start())


@pytest.mark.parametrize("overlap", [False, True])
def test_several_workers_equal_the_replay_of_their_order(overlap: bool):
    box, steps, rate = ModelBox(), 12, 0.3
    workers = [worker(i, box, period=2, moving_rate=rate, overlap=overlap) for i in range(3)]

    def work(one: Descent) -> None:
        one.run(steps)
        one.optimizer.close()

    threads = [threading.Thread(target=work, args=(w,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    xs, c, settings = [start() for _ in workers], start(), {"steps": steps, "lr": LR}
    runs = {
        f"w{i}": oracles.shared(
            oracles.easgd(x, c, gradient(i), moving_rate=rate, period=2, **settings),
            x,
            c,
            moving_rate=rate,
        )
        for i, x in enumerate(xs)
    }
    order = box.order("run.float32", "elastic")
    assert len(order) == 3 * 7
    oracles.replay(runs, order)
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)


def test_workers_join_and_leave_in_the_middle():
    box = ModelBox()
    first = worker(0, box, period=1, moving_rate=0.5)
    finish(first, 5)
    late = worker(1, box, np.zeros(SIZE, np.float32), period=1, moving_rate=0.5)
    np.testing.assert_array_equal(late.values(), center(box))
    finish(late, 5)
    c = center(box)
    assert np.abs(c).max() < np.abs(start()).max()
    assert late.optimizer.stats().exchanges == 5


@pytest.mark.parametrize(("workers", "period"), [(1, 1), (2, 1), (2, 4), (4, 1)])
def test_the_center_moves_with_a_part_of_the_learning_rate(workers: int, period: int):
    box, steps = ModelBox(), 400
    team = [worker(i, box, np.zeros(1, np.float32), period=period) for i in range(workers)]
    for one in team:
        one.x.grad = torch.ones(1)
    for one in team * steps:
        one.optimizer.step()
    assert -center(box) / (steps * LR) == pytest.approx(workers / (workers + 1), rel=0.02)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("is_new_memory", [False, True])
def test_a_run_resumes_exactly(overlap: bool, is_new_memory: bool):
    settings = {"period": 2, "moving_rate": 0.3, "overlap": overlap}
    box = ModelBox()
    whole = worker(0, box, **settings)
    whole.run(5)
    saved = whole.optimizer.state_dict()
    finish(whole, 5)

    again = ModelBox() if is_new_memory else box
    rest = worker(0, again, np.zeros(SIZE, np.float32), **settings)
    rest.optimizer.load_state_dict(saved, force=not is_new_memory)
    rest.t = 5
    finish(rest, 5)
    np.testing.assert_array_equal(rest.values(), whole.values())
    np.testing.assert_array_equal(center(again), center(box))


def test_an_exchange_runs_while_the_gradient_is_taken():
    box, gate, asked = ModelBox(), threading.Event(), threading.Event()
    one = worker(0, box, period=1, overlap=True)
    one.run()
    one.optimizer.state_dict()  # waits for its exchange
    ask = one.optimizer.request_moves

    def gated(xs, moves) -> None:
        asked.set()
        assert gate.wait(60.0)
        ask(xs, moves)

    one.optimizer.request_moves = gated
    one.run()  # the exchange that it ends with waits, and it does not
    assert asked.wait(60.0)
    before = one.values()
    one.optimizer.zero_grad()
    (0.5 * one.x**2).sum().backward()
    gate.set()
    one.optimizer.state_dict()
    np.testing.assert_array_equal(one.values(), before)
    one.optimizer.close()


@pytest.mark.parametrize("evaluates", [False, True])
def test_nobody_sets_x_to_the_center_before_it_was_read(waiting_opens, evaluates: bool):
    box, gate = ModelBox(), threading.Event()
    one = worker(0, box, period=2, moving_rate=0.5, overlap=True)
    one.run()
    ask = one.optimizer.request_moves
    one.optimizer.request_moves = lambda xs, moves: (gate.wait(), ask(xs, moves))[0]
    waiting_opens(gate)
    one.run()
    x, c = one.values(), center(box)
    model = torch.nn.Module()
    model.x = one.x
    one.optimizer.eval() if evaluates else one.optimizer.center_into(model)
    gate.set()
    np.testing.assert_array_equal(one.values(), c + (x - c) * np.float32(0.5))
    one.optimizer.close(exchange=False)


def test_overlap_counts_exchanges_and_staleness_counts_the_others():
    box = ModelBox()
    one, two = (worker(i, box, period=1, overlap=i == 0, workers=2) for i in range(2))
    one.run()
    two.run()
    two.run()
    one.run()
    one.optimizer.close(exchange=False)
    stats = two.optimizer.stats()
    assert stats.exchanges == 2
    assert stats.waited_ms == pytest.approx(stats.exchange_ms)
    assert one.optimizer.stats().exchanges == 3
    assert sum(one.optimizer.stats().staleness.values()) == 3
    assert one.optimizer.stats().nbytes == 3 * 2 * 4 * SIZE
    assert one.optimizer.moving_rate == pytest.approx(0.45)


def test_an_exchange_that_fails_moves_nothing_and_the_next_one_does():
    box = ModelBox()
    one = worker(0, box, period=1, moving_rate=0.5, overlap=True)
    one.run(2)
    one.optimizer.state_dict()
    ask = one.optimizer.request_moves

    def fail(xs, moves) -> None:
        moves[0].fill_(100.0)
        raise ConnectionError("the memory is gone")

    one.optimizer.request_moves = fail
    one.run()
    before = one.values()
    with pytest.raises(ConnectionError):
        one.optimizer.step()
    one.optimizer.request_moves = ask
    np.testing.assert_array_equal(one.values(), before)
    one.run()
    one.optimizer.close(exchange=False)
    assert np.abs(one.values()).max() < 10
    assert one.optimizer.stats().exchanges == 5


def test_an_exchange_that_is_asked_for_comes_after_the_one_under_way():
    box = ModelBox()
    one = worker(0, box, period=100, moving_rate=0.5, overlap=True)
    x, c = start(), start()
    one.run()
    oracles.run(oracles.easgd(x, c, gradient(0), steps=1, lr=LR, moving_rate=0.5, period=100))
    for _ in range(2):
        one.optimizer.exchange()
        x -= oracles.elastic(x, c, 0.5)
    one.optimizer.close(exchange=False)
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(center(box), c)


@pytest.mark.parametrize("loads", [False, True])
def test_a_state_is_taken_and_loaded_after_the_exchange_under_way(waiting_opens, loads: bool):
    box, gate = ModelBox(), threading.Event()
    one = worker(0, box, period=1, overlap=True)
    saved = one.optimizer.state_dict()
    ask = one.optimizer.request_moves
    one.run()
    one.optimizer.state_dict()
    one.optimizer.request_moves = lambda xs, moves: (gate.wait(), ask(xs, moves))[0]
    one.optimizer.exchange()
    waiting_opens(gate)
    began = len(box.log)
    if loads:
        one.optimizer.load_state_dict(saved, force=True)
    else:
        one.optimizer.state_dict()
    ops = [entry.op for entry in box.log[began:]]
    assert ops[0] == "elastic"
    assert ops[-1] == ("put" if loads else "get")
    one.optimizer.close(exchange=False)


def test_batch_norm_buffers_travel_in_a_region_of_their_own():
    box = ModelBox()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    opt = EASGD(
        torch.optim.SGD(model.parameters(), lr=LR), box, "bn", period=1, model=model, workers=1
    )
    for _ in range(3):
        opt.zero_grad()
        model(torch.randn(8, 3) + 5).sum().backward()
        opt.step()
    names = [region.name for region in box.regions()]
    assert names == ["bn.algorithm", "bn.buffers.float32", "bn.counts", "bn.float32"]
    assert np.abs(box.attach("bn.buffers.float32").get()[:4]).max() > 0
    twin = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    opt.center_into(twin)
    np.testing.assert_array_equal(
        twin[1].running_mean.numpy(), box.attach("bn.buffers.float32").get()[:4]
    )


def test_impossible_settings_create_nothing():
    box = ModelBox()
    for settings in ({"period": 0}, {"moving_rate": 1.5}, {"moving_rate": 0.0}):
        with pytest.raises(ConfigError):
            worker(0, box, **settings)
    assert box.regions() == []


class Statistics(torch.nn.Module):
    """A parameter, and a running variance that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("running_var", torch.ones(3))


@pytest.mark.parametrize("wire", [None, "bfloat16"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_variance_that_falls_between_two_exchanges_never_becomes_negative(overlap, wire):
    box, rng = ModelBox(), np.random.default_rng(4)
    models, team = [Statistics(), Statistics()], []
    for number, model in enumerate(models):
        sgd, client = torch.optim.SGD(model.parameters(), lr=0.1), box.client(f"w{number}")
        options = {"period": 1, "moving_rate": 0.9, "overlap": overlap, "wire": wire}
        team.append(EASGD(sgd, client, "run", model=model, workers=2, **options))
    for _ in range(200):
        number = int(rng.integers(2))
        model, optimizer = models[number], team[number]
        with torch.no_grad():  # a batch whose variance is far from the one before
            model.running_var.fill_(float(10.0 ** rng.integers(-4, 4)))
        model.x.grad = torch.zeros(2)
        optimizer.step()
        assert (model.running_var >= 0).all()
        assert (box.attach("run.buffers.float32").get() >= 0).all()
    for optimizer in team:
        optimizer.close()
