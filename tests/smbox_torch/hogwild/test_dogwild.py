from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox.testing.quadratic import LR, SIZE, Descent, gradient, start
from smbox_torch.hogwild.dogwild import Dogwild

LONG_S = 60.0
MASTER = 0


def made(box: ModelBox, number: int, **options: Any) -> Descent:
    """Worker of a number; 0 is the master."""
    x = torch.nn.Parameter(torch.from_numpy(start() + np.float32(number)))
    options = {"is_master": number == MASTER, "pause_s": None, "workers": 1} | options
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(number, x, Dogwild(sgd, box.client(f"w{number}"), "run", **options))


class Replay:
    """The equations in float32; who does what when is up to the caller."""

    def __init__(self, workers: int) -> None:
        self.c, self.s = start(), np.zeros(SIZE, np.float32)
        self.x = [start() for _ in range(workers)]
        self.p = [np.zeros(SIZE, np.float32) for _ in range(workers)]
        self.t = [0] * workers

    def solve(self, worker: int) -> None:
        g = gradient(worker)(self.x[worker], self.t[worker])
        self.t[worker] += 1
        if worker == MASTER:
            self.x[MASTER] -= np.float32(LR) * (g + self.p[MASTER])
            self.p[MASTER][:] = 0
        else:
            self.p[worker] += g

    def stream(self, worker: int) -> None:
        if worker == MASTER:
            self.p[MASTER] += self.s
            self.s[:] = 0
            self.c[:] = self.x[MASTER]
        else:
            self.s += self.p[worker]
            self.p[worker][:] = 0
            self.x[worker][:] = self.c


def test_solvers_and_streamers_in_a_recorded_order_equal_the_replay():
    box, replay = ModelBox(), Replay(3)
    team = [made(box, number) for number in range(3)]
    random = np.random.default_rng(8)
    for _ in range(90):
        worker = int(random.integers(3))
        if random.random() < 0.5:
            team[worker].run()
            replay.solve(worker)
        else:
            team[worker].optimizer.stream()
            replay.stream(worker)
    for one, x in zip(team, replay.x, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(box.attach("run.float32").get(), replay.c, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        box.attach("run.gradients.float32").get(), replay.s, rtol=0, atol=1e-6
    )
    assert np.abs(replay.x[1] - replay.x[0]).max() > 1e-3  # somebody is behind


def test_a_master_alone_is_the_plain_optimizer_bit_for_bit():
    alone = made(ModelBox(), MASTER, pause_s=0.0)
    alone.run(12)
    alone.optimizer.close()
    x = torch.nn.Parameter(torch.from_numpy(start()))
    plain = Descent(0, x, torch.optim.SGD([x], lr=LR))
    plain.run(12)
    assert alone.values().tobytes() == plain.values().tobytes()


def test_sparse_gradients_do_what_dense_ones_do():
    ends = []
    for is_sparse in (True, False):
        box, tables, team = ModelBox(), [], []
        for number in (MASTER, 1):
            table = torch.nn.Embedding(4, 2, sparse=is_sparse)
            torch.nn.init.zeros_(table.weight)
            sgd = torch.optim.SGD(table.parameters(), lr=1.0)
            settings = {"is_master": number == MASTER, "pause_s": None}
            team.append(Dogwild(sgd, box.client(f"w{number}"), "run", workers=1, **settings))
            tables.append(table)
        for _ in range(3):
            for table, optimizer in zip(tables, team, strict=True):
                optimizer.zero_grad()
                table(torch.tensor([1, 3, 3])).sum().backward()
                optimizer.step()
            for streamer in reversed(team):  # the worker's first, for the master to find
                streamer.stream()
        ends.append([table.weight.tolist() for table in tables])
    assert ends[0] == ends[1]
    assert ends[0][MASTER][3] == [-10, -10]  # five gradients of 2: the last one comes too late


def test_every_gradient_arrives_once_at_any_pace():
    box, size = ModelBox(), STRIPE_NBYTES // 4 + 5  # more than one chunk
    steps, workers = 40, 2

    def member(is_master: bool) -> tuple[torch.nn.Parameter, Dogwild]:
        x = torch.nn.Parameter(torch.zeros(size))
        sgd = torch.optim.SGD([x], lr=1.0)
        return x, Dogwild(sgd, box, "run", is_master=is_master, pause_s=0.0, workers=1)

    def work(_: int) -> None:
        x, optimizer = member(is_master=False)
        with optimizer:
            for _ in range(steps):
                x.grad = torch.ones(size)
                optimizer.step()

    x, master = member(is_master=True)
    with master, ThreadPoolExecutor(workers) as pool:
        working = [pool.submit(work, number) for number in range(workers)]
        deadline_s = time.monotonic() + LONG_S
        while x.min() > -steps * workers or x.max() > -steps * workers:
            assert time.monotonic() < deadline_s, x
            master.zero_grad()
            master.step()
        for each in working:
            each.result()
    assert torch.equal(x, torch.full((size,), -float(steps * workers)))
    assert (box.attach("run.float32").get() == -steps * workers).all()


def test_streaming_is_hidden_and_counted():
    box = ModelBox()
    with made(box, MASTER, pause_s=0.0).optimizer, made(box, 1, pause_s=0.0).optimizer as one:
        deadline_s = time.monotonic() + LONG_S
        while one.stats().exchanges < 3:
            assert time.monotonic() < deadline_s
    assert one.stats().nbytes >= 3 * 2 * 4 * SIZE
    assert one.stats().waited_ms == 0


def test_a_streamer_that_fails_ends_the_next_step(streamer, monkeypatch):
    one = made(ModelBox(), 1, pause_s=0.0)
    thread = streamer()

    def fail(*_: object) -> None:
        raise ConnectionError("the memory is gone")

    monkeypatch.setattr(ModelRegion, "accumulate", fail)
    thread.join(LONG_S)
    for error in (ConnectionError, ConfigError, ConfigError):  # further steps reach nobody
        with pytest.raises(error, match=r"is gone|streamer has ended"):
            one.run()
    one.optimizer.close()


def test_an_interrupted_finish_that_is_repeated_sends_all_gradients(streamer, monkeypatch):
    box = ModelBox()
    one = made(box, 1, pause_s=1e6)
    deadline_s = time.monotonic() + LONG_S
    while one.optimizer.stats().exchanges < 1:
        assert time.monotonic() < deadline_s
    sent = gradient(1)(one.values(), 0)
    one.run()
    with monkeypatch.context() as patch:
        patch.setattr(streamer(), "join", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            one.optimizer.finish()
    one.optimizer.finish()
    np.testing.assert_array_equal(box.attach("run.gradients.float32").get(), sent)


def test_a_run_resumes_with_what_was_on_its_way():
    box, again = ModelBox(), ModelBox()
    team = [made(box, number) for number in range(2)]
    for one in (team[1], team[1], team[0]):
        one.run()
    team[1].optimizer.stream()
    team[1].run()
    saved = [one.optimizer.state_dict() for one in team]
    rest = [made(again, number) for number in range(2)]
    for one, state in zip(rest, saved, strict=True):
        one.optimizer.load_state_dict(state)
        one.t = state["steps"]
    for members in (team, rest):
        members[1].optimizer.stream()
        members[0].optimizer.stream()
        members[0].run()
    assert rest[0].values().tobytes() == team[0].values().tobytes()


def test_a_frozen_parameter_of_the_master_is_not_decayed():
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    p.requires_grad_(False)
    sgd = torch.optim.SGD([p, q], lr=0.5, weight_decay=0.5)
    master = Dogwild(sgd, ModelBox(), "run", is_master=True, pause_s=None, workers=1)
    q.sum().backward()
    master.step()
    assert p.tolist() == [1, 1]
    assert q.tolist() == [0.25, 0.25]


def test_a_master_that_only_steps_applies_each_gradient_once():
    box, decay = ModelBox(), {"lr": 0.5, "weight_decay": 0.5}
    used, unused = ([torch.nn.Parameter(torch.ones(2)) for _ in range(2)] for _ in range(2))
    worker, master = (
        Dogwild(
            torch.optim.SGD([p, q], **decay),
            box.client(f"w{number}"),
            "run",
            is_master=number == MASTER,
            pause_s=None,
            workers=2,
        )
        for number, p, q in zip((1, MASTER), used, unused, strict=True)
    )
    used[0].sum().backward()
    worker.step()
    worker.stream()
    master.stream()
    for _ in range(3):
        master.step()
    assert used[1].tolist() == [0.25, 0.25]
    assert unused[1].tolist() == [1, 1]


def normed(box: ModelBox, number: int, **options: Any) -> tuple[torch.nn.Module, Dogwild]:
    torch.manual_seed(number)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    options = {"is_master": number == MASTER, "pause_s": None, "workers": 2} | options
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    return net, Dogwild(sgd, box.client(f"w{number}"), "run", model=net, **options)


def batch(t: int) -> torch.Tensor:
    return 5 + torch.randn(16, 3, generator=torch.Generator().manual_seed(t))


def test_a_master_without_data_evaluates_with_the_workers_statistics():
    box = ModelBox()
    (net, master), (worked, worker) = normed(box, MASTER), normed(box, 1)
    for t in range(60):
        worker.zero_grad()
        worked(batch(t)).square().mean().backward()
        for each in (worker, master):
            each.step()
            each.stream()
    master.step()
    assert net[1].num_batches_tracked.item() == 60
    plain = torch.nn.Sequential(net[0], torch.nn.BatchNorm1d(4, momentum=0.1))
    with torch.no_grad():
        for t in range(60):
            plain(batch(t))
    judged, _ = normed(ModelBox(), 7)
    worker.center_into(judged)
    for norm in (net[1], judged[1]):
        torch.testing.assert_close(norm.running_mean, plain[1].running_mean, rtol=0.1, atol=0.1)
        torch.testing.assert_close(norm.running_var, plain[1].running_var, rtol=0.3, atol=0.1)
    assert judged[1].num_batches_tracked.item() == 60
    out = judged.eval()(batch(99)).detach()
    assert out.mean(dim=0).abs().max() < 0.5  # as a batch norm leaves them


def test_streamed_variances_are_never_negative():
    box = ModelBox()
    team = [normed(box, number, pause_s=0.0) for number in range(2)]
    for t in range(40):
        for number, (net, optimizer) in enumerate(team):
            optimizer.zero_grad()
            net(batch(t) * (1000.0 if number else 1e-3)).square().mean().backward()
            optimizer.step()
            assert (net[1].running_var >= 0).all()
            assert (box.attach("run.buffers.float32").get()[4:] >= 0).all()
    for _, optimizer in team:
        optimizer.close()


def test_rank_0_is_the_master(monkeypatch):
    for rank, is_master in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        one = made(ModelBox(), 0, is_master=None, workers=None)
        assert one.optimizer.is_master is is_master


def test_a_negative_pause_is_refused():
    with pytest.raises(ConfigError, match="pause"):
        made(ModelBox(), 0, pause_s=-1.0)
