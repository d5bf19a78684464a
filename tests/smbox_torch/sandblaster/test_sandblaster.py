"""Sandblaster's iterates are those of L-BFGS in memory, and workers may come, go and die."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import smbox
from smbox.errors import (
    ConfigError,
    RequestTimeoutError,
)
from smbox.testing.lbfgs import lbfgs
from smbox_torch import Sandblaster, SandblasterWorker
from smbox_torch.demo.digits import load
from smbox_torch.sandblaster.scheduler import PortionScheduler

pytestmark = pytest.mark.shares

WAIT_S = 60.0
PORTIONS = 4
PENALTY = 1e-2


def name():
    return f"run-{uuid.uuid4().hex[:8]}"


class Digits:
    """L2 logistic regression on the digits, strongly convex; the same model for all."""

    def __init__(self, dtype):
        data, _ = load()
        self.x, self.y = data.x.flatten(1).to(dtype), data.y
        self.model = nn.Linear(64, 10, dtype=dtype)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()

    def loss(self, portion):
        part = slice(portion, None, PORTIONS)
        square = sum(p.square().sum() for p in self.model.parameters())
        loss = nn.functional.cross_entropy(self.model(self.x[part]), self.y[part])
        return (loss + PENALTY / 2 * square) / PORTIONS

    def evaluate(self, x):
        """Loss and gradient at x in memory, portion by portion."""
        nn.utils.vector_to_parameters(torch.from_numpy(x), self.model.parameters())
        total, gradient = 0.0, np.zeros_like(x)
        for portion in range(PORTIONS):
            self.model.zero_grad()
            loss = self.loss(portion)
            loss.backward()
            total += loss.item()
            grads = [p.grad for p in self.model.parameters()]
            gradient = gradient + nn.utils.parameters_to_vector(grads).numpy()
        return total, gradient


def start(pool, address, run, rank, transport="shm", loss_of=None, dtype=torch.float64):
    """Run a worker in a thread, with a box and a model of its own."""

    def work():
        problem = Digits(dtype)
        with smbox.connect(address, transport=transport, timeout_s=WAIT_S) as box:
            parameters = problem.model.parameters()
            worker = SandblasterWorker(box, parameters, run, rank=rank, timeout_s=WAIT_S)
            worker.run(problem.loss if loss_of is None else lambda p: loss_of(problem, p))
            return worker.computed

    return pool.submit(work)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float64, 1e-11), (torch.float32, 1e-5)], ids=str
)
def test_iterates_equal_those_in_memory_to_rounding(box, node, dtype, rtol):
    run, problem, reference = name(), Digits(dtype), Digits(dtype)
    x = np.zeros(650, str(dtype).removeprefix("torch."))
    wanted = lbfgs(x, reference.evaluate, 10)
    with ThreadPoolExecutor(1) as pool:
        made = Sandblaster(
            box, problem.model.parameters(), run, workers=1, portions=PORTIONS, timeout_s=WAIT_S
        )
        with made as optimizer:
            computed = start(pool, node.address, run, 0, box.transport, dtype=dtype)
            for _ in range(15):
                done, (x, loss, size) = optimizer.step(), next(wanted)
                assert done.size == pytest.approx(size, rel=rtol)
                assert done.loss == pytest.approx(loss, rel=rtol / 10)
                np.testing.assert_allclose(optimizer.vectors.x.get(), x, rtol=rtol, atol=rtol)
            optimizer.load()
        assert computed.result(WAIT_S) >= 16 * PORTIONS
    found = nn.utils.parameters_to_vector(problem.model.parameters()).detach().numpy()
    np.testing.assert_allclose(found, x, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("box", ["shm"], indirect=True)  # iterates do not depend on it
def test_it_finds_the_minimum_of_another_lbfgs(box, node):
    run, problem, other = name(), Digits(torch.float64), Digits(torch.float64)
    reference = torch.optim.LBFGS(
        other.model.parameters(),
        max_iter=500,
        tolerance_grad=1e-9,
        line_search_fn="strong_wolfe",
    )

    def closure():
        reference.zero_grad()
        loss = sum(other.loss(portion) for portion in range(PORTIONS))
        loss.backward()
        return loss

    reference.step(closure)
    with ThreadPoolExecutor(2) as pool:
        parameters = problem.model.parameters()
        with Sandblaster(box, parameters, run, workers=2, portions=PORTIONS) as optimizer:
            for rank in range(2):
                start(pool, node.address, run, rank)
            losses = [optimizer.step().loss for _ in range(80)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(closure().item(), rel=1e-6)


def test_a_portion_that_a_slow_worker_holds_is_done_again(box, node):
    run, problem = name(), Digits(torch.float64)
    is_held, is_over = threading.Event(), threading.Event()

    def slow(own, portion):
        is_held.set()
        is_over.wait(WAIT_S)
        return own.loss(portion)

    with ThreadPoolExecutor(3) as pool:
        parameters = problem.model.parameters()
        with Sandblaster(box, parameters, run, workers=2, portions=PORTIONS) as optimizer:
            late = start(pool, node.address, run, 0, loss_of=slow)
            begun = pool.submit(optimizer.evaluate)
            assert is_held.wait(WAIT_S)
            quick = start(pool, node.address, run, 1)
            found = begun.result(WAIT_S)
            assert optimizer.portions.added == [0, PORTIONS]
            gradient = optimizer.vectors.gradient.get()
            is_over.set()
        assert late.result(WAIT_S) == 1
        assert quick.result(WAIT_S) == PORTIONS
    wanted = Digits(torch.float64).evaluate(np.zeros(650))
    assert found == pytest.approx(wanted[0], rel=1e-12)
    np.testing.assert_allclose(gradient, wanted[1], rtol=1e-12, atol=1e-15)


def test_a_step_without_workers_times_out_and_another_goes_on(box, node):
    run, x = name(), torch.full((3,), 5.0, dtype=torch.float64)
    with Sandblaster(box, [x], run, workers=1, portions=2, timeout_s=0.1) as optimizer:
        with pytest.raises(RequestTimeoutError):
            optimizer.step()
        assert optimizer.vectors.x.get().tolist() == [5] * 3

        def work():
            own = torch.zeros(3, requires_grad=True, dtype=torch.float64)
            with smbox.connect(node.address, timeout_s=WAIT_S) as other:
                SandblasterWorker(other, [own], run, rank=0).run(lambda _: own.square().sum())

        helper = threading.Thread(target=work)
        helper.start()
        optimizer.timeout_s = WAIT_S
        for _ in range(3):
            done = optimizer.step()
        assert done.loss < 1e-9
    helper.join(WAIT_S)


def test_models_that_do_not_fit_are_refused(box):
    run = name()
    two = [torch.zeros(2), torch.zeros(2, dtype=torch.float64)]
    with pytest.raises(ConfigError, match="one dtype"):
        Sandblaster(box, two, run, workers=1, portions=1)
    with pytest.raises(ConfigError, match="float32 or float64"):
        Sandblaster(box, [torch.zeros(2, dtype=torch.float16)], run, workers=1, portions=1)
    with Sandblaster(box, [torch.zeros(3)], run, workers=1, portions=1):
        other = torch.zeros(4, requires_grad=True)
        with pytest.raises(ConfigError, match="differ from those of the run"):
            SandblasterWorker(box, [other], run, rank=0)
        wide = torch.zeros(3, requires_grad=True, dtype=torch.float64)
        with pytest.raises(ConfigError, match="differ from those of the run"):
            SandblasterWorker(box, [wide], run, rank=0)


def test_workers_that_find_the_run_find_its_initial_x(box, monkeypatch):
    run, found, begin = name(), [], PortionScheduler.open

    def open_(portions):
        found.extend(box.attach(f"{run}.x").get().tolist())
        begin(portions)

    monkeypatch.setattr(PortionScheduler, "open", open_)
    with Sandblaster(box, [torch.ones(3)], run, workers=1, portions=1):
        assert found == [1, 1, 1]


def test_a_loss_may_replace_the_gradients(box, follow):
    run, x = name(), torch.full((3,), 5.0, dtype=torch.float64)

    def loss_of(own):
        own.grad = None
        return own.square().sum()

    with ThreadPoolExecutor(1) as pool:
        with Sandblaster(box, [x], run, workers=1, portions=2) as optimizer:
            worker = pool.submit(follow, run, loss_of)
            done = optimizer.step()
            assert optimizer.vectors.gradient.get().tolist() != [0, 0, 0]
            assert (done.size > 0, done.evaluations >= 2) == (True, True)
        worker.result(WAIT_S)
