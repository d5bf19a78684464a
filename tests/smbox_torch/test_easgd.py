from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import smbox_torch
from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD

torch.set_num_threads(1)
LR, N = 2.0**-4, 7  # a power of two: a fused multiply-add rounds like product and sum
F32 = np.float32


def noise(worker: int, t: int) -> np.ndarray:
    return np.random.default_rng((worker, t)).standard_normal(N).astype(F32)


def gradient(worker: int):
    return lambda x, t: x - noise(worker, t)


class Worker:
    """A point that descends noisy quadratics."""

    def __init__(self, worker: int, box: ModelBox, start: np.ndarray, **settings) -> None:
        self.worker, self.t = worker, 0
        self.x = torch.nn.Parameter(torch.from_numpy(start.copy()))
        self.opt = EASGD(
            torch.optim.SGD([self.x], lr=LR), box.client(f"w{worker}"), "run", **settings
        )

    def step(self) -> None:
        self.opt.zero_grad()
        goal = torch.from_numpy(noise(self.worker, self.t))
        (0.5 * (self.x - goal) ** 2).sum().backward()
        self.opt.step()
        self.t += 1


def start() -> np.ndarray:
    return np.random.default_rng(99).standard_normal(N).astype(F32)


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("period", [1, 3])
def test_one_worker_is_the_sequential_algorithm(overlap: bool, period: int):
    box = ModelBox()
    worker = Worker(0, box, start(), period=period, moving_rate=0.3, overlap=overlap)
    for _ in range(10):
        worker.step()
    worker.opt.close()
    x, c = start(), start()
    algorithm = oracles.easgd_overlapped if overlap else oracles.easgd
    oracles.run(algorithm(x, c, gradient(0), steps=10, lr=LR, moving_rate=0.3, period=period))
    np.testing.assert_array_equal(worker.x.detach().numpy(), x)
    np.testing.assert_array_equal(center(box), c)
    assert not np.array_equal(c, start())


@pytest.mark.parametrize("overlap", [False, True])
def test_several_workers_equal_the_replay_of_their_order(overlap: bool):
    box, steps, rate = ModelBox(), 12, 0.3
    workers = [
        Worker(i, box, start(), period=2, moving_rate=rate, overlap=overlap) for i in range(3)
    ]
    threads = [threading.Thread(target=finish, args=(w, steps)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    algorithm = oracles.easgd_overlapped if overlap else oracles.easgd
    xs, c = [start() for _ in workers], start()
    runs = {
        f"w{i}": algorithm(x, c, gradient(i), steps=steps, lr=LR, moving_rate=rate, period=2)
        for i, x in enumerate(xs)
    }
    order = box.order("run.float32", "elastic")
    assert len(order) == 3 * 6
    oracles.replay(runs, order)
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)
    for worker, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(worker.x.detach().numpy(), x, rtol=0, atol=1e-6)


def finish(worker: Worker, steps: int) -> None:
    for _ in range(steps):
        worker.step()
    worker.opt.close()


def test_workers_join_and_leave_in_the_middle():
    box = ModelBox()
    first = Worker(0, box, start(), period=1, moving_rate=0.5)
    finish(first, 5)
    late = Worker(1, box, np.zeros(N, F32), period=1, moving_rate=0.5)
    np.testing.assert_array_equal(late.x.detach().numpy(), center(box))
    finish(late, 5)
    c = center(box)
    assert np.abs(c).max() < np.abs(start()).max()
    assert late.opt.stats().exchanges == 5


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("is_new_memory", [False, True])
def test_a_run_resumes_exactly(overlap: bool, is_new_memory: bool):
    settings = {"period": 2, "moving_rate": 0.3, "overlap": overlap}
    box = ModelBox()
    whole = Worker(0, box, start(), **settings)
    for _ in range(5):
        whole.step()
    saved = whole.opt.state_dict()
    for _ in range(5):
        whole.step()
    whole.opt.close()

    again = ModelBox() if is_new_memory else box
    rest = Worker(0, again, np.zeros(N, F32), **settings)
    rest.opt.load_state_dict(saved, force=not is_new_memory)
    rest.t = 5
    finish(rest, 5)
    np.testing.assert_array_equal(rest.x.detach().numpy(), whole.x.detach().numpy())
    np.testing.assert_array_equal(center(again), center(box))


def test_overlap_hides_an_exchange_and_staleness_counts_the_others():
    box = ModelBox()
    one, two = (Worker(i, box, start(), period=1, overlap=i == 0, workers=2) for i in range(2))
    one.step()
    two.step()
    two.step()
    one.step()
    one.opt.close()
    stats = two.opt.stats()
    assert stats.exchanges == 2
    assert stats.waited_ms == pytest.approx(stats.exchange_ms)
    assert one.opt.stats().exchanges == 2
    assert sum(one.opt.stats().staleness.values()) == 2
    assert one.opt.stats().nbytes == 2 * 2 * 4 * N
    assert one.opt.moving_rate == pytest.approx(0.45)


def test_batch_norm_buffers_travel_in_a_region_of_their_own():
    box = ModelBox()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    opt = EASGD(torch.optim.SGD(model.parameters(), lr=LR), box, "bn", period=1, model=model)
    for _ in range(3):
        opt.zero_grad()
        model(torch.randn(8, 3) + 5).sum().backward()
        opt.step()
    assert box.regions() == ["bn.buffers.float32", "bn.float32"]
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
            Worker(0, box, start(), **settings)
    assert smbox_torch.EASGD is EASGD
    assert box.regions() == []
