from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import smbox
from smbox.errors import RequestTimeoutError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, noise, start
from smbox_torch.elastic.easgd_sync import SyncEASGD
from smbox_torch.elastic.stability import StabilityWarning

torch.set_num_threads(1)


def worker(number: int, box: ModelBox, workers: int, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    wrapped = SyncEASGD(
        sgd, box.client(f"w{number}"), "run", period=2, workers=workers, **settings
    )
    return Descent(number, x, wrapped)


def replayed(workers: int, steps: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Gradients differ by worker: the oracle calls it for each worker in turn."""
    xs, c = [start() for _ in range(workers)], start()
    turn = iter(range(workers * steps))
    oracles.sync_easgd(
        xs,
        c,
        lambda x, t: x - noise(next(turn) % workers, t),
        steps=steps,
        lr=LR,
        moving_rate=0.9 / workers,
        period=2,
    )
    return xs, c


def test_one_worker_is_the_sequential_algorithm():
    box = ModelBox()
    one = worker(0, box, 1)
    one.run(9)
    (x,), c = replayed(1, 9)
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)
    assert one.optimizer.state_dict()["shared"] == 8  # the next exchange shares the last step
    assert one.optimizer.recorder.others_s > 0.0  # barriers are no slow exchanges
    one.optimizer.close()
    assert one.optimizer.state_dict()["shared"] == 9


def test_three_workers_move_in_lockstep():
    box = ModelBox()
    workers = [worker(i, box, 3) for i in range(3)]
    threads = [threading.Thread(target=one.run, args=(9,)) for one in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    xs, c = replayed(3, 9)
    np.testing.assert_allclose(box.attach("run.float32").get(), c, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)
    assert workers[0].optimizer.stats().staleness == {0: 5}


def test_no_variance_of_a_batch_norm_becomes_negative():
    """Four moves of 0.35 from one center would add up to 1.4 of the distance."""
    box, workers = ModelBox(), 4

    def train(net: torch.nn.Module, opt: SyncEASGD) -> None:
        net[0].running_var.zero_()
        opt.zero_grad()
        net(torch.zeros(2, 3)).sum().backward()
        opt.step()

    def made(number: int) -> tuple[torch.nn.Module, SyncEASGD]:
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=0.0), torch.nn.Linear(3, 1))
        sgd = torch.optim.SGD(net.parameters(), lr=LR)
        settings = {"period": 1, "workers": workers, "rank": number, "model": net}
        client = box.client(f"w{number}")
        return net, SyncEASGD(sgd, client, "run", moving_rate=0.35, **settings)

    pairs = [made(number) for number in range(workers)]
    threads = [threading.Thread(target=train, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    variances = [net[0].running_var for net, _ in pairs]
    center = box.attach("run.buffers.float32").get()[3:]
    np.testing.assert_allclose(center, 0.65**workers, rtol=1e-5)
    assert all((each > 0.0).all() for each in variances)


def test_a_worker_that_is_missing_times_out_the_others():
    one = worker(0, ModelBox(), 2, timeout_s=0.01)
    with pytest.raises(RequestTimeoutError):
        one.run()


def test_a_moving_rate_beyond_the_bound_is_warned_of():
    """At p = 4 and 0.5 it diverges: the bound of p * moving_rate is 4 / 2.5."""
    with pytest.warns(StabilityWarning, match="above 1.6"):
        worker(0, ModelBox(), 4, moving_rate=0.5)
    worker(0, ModelBox(), 4, moving_rate=0.39)
    assert diverges(4, 0.5)
    assert not diverges(4, 0.39)


def diverges(workers: int, moving_rate: float) -> bool:
    """Whether synchronous EASGD grows without gradients."""
    xs, c = [np.full(1, 1.0, np.float32) for _ in range(workers)], np.zeros(1, np.float32)
    oracles.sync_easgd(
        xs,
        c,
        lambda x, t: 0.0 * x,
        steps=60,
        lr=LR,
        moving_rate=moving_rate,
        period=1,
    )
    return bool(abs(xs[0] - c) > 1.0)


def test_who_joins_between_the_two_barriers_reads_with_the_others(open_box, until):
    rate, xs = 0.25, [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]

    def made(x: torch.nn.Parameter) -> SyncEASGD:
        sgd, box = torch.optim.SGD([x], lr=1.0), open_box()
        member = smbox.join(box, "workers", expected=2)
        return SyncEASGD(sgd, box, "run", workers=member, moving_rate=rate)

    def step(opt: SyncEASGD, x: torch.nn.Parameter, steps: int) -> None:
        for _ in range(steps):
            x.grad = torch.ones(1)
            opt.step()

    def meet(times: int) -> None:
        for _ in range(times):
            other.meet(timeout_s=30.0)

    other = smbox.join(open_box(), "workers", expected=2)  # it only attends
    one = made(xs[0])
    with ThreadPoolExecutor(2) as pool:
        steps = [pool.submit(step, one, xs[0], 4)]
        meet(3)
        until(lambda: one.center.regions[0].get()[0] == -rate)  # it waits at the second barrier
        late = made(xs[1])
        steps.append(pool.submit(step, late, xs[1], 2))
        meet(5)
        for each in steps:
            each.result()
    assert one.team.met == late.team.met == 8
    center, x, joined = -rate, rate - 2.0, -rate
    for _ in range(2):  # both read the same center
        moves = rate * (x - center), rate * (joined - center)
        x, joined, center = x - moves[0] - 1.0, joined - moves[1] - 1.0, center + sum(moves)
    np.testing.assert_allclose(one.center.regions[0].get(), center, rtol=1e-6)
    np.testing.assert_allclose([each.item() for each in xs], [x, joined], rtol=1e-6)
    other.leave()
    one.close()
    late.close()


def test_the_default_moving_rate_follows_the_number_of_workers():
    box = ModelBox()
    one = worker(0, box, 1)
    one.run(2)  # the next step exchanges
    x, c = one.values(), box.attach("run.float32").get()
    one.optimizer.team.size = 9
    one.optimizer.team.meet = lambda *_: None
    one.run()
    moved = x - (x - c) / 10 - np.float32(LR) * (x - noise(0, 2))
    np.testing.assert_allclose(one.values(), moved, rtol=0, atol=1e-6)
