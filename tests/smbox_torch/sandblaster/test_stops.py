"""A step of Sandblaster moves x to a lower loss, or says why not, whatever the numbers."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from smbox.errors import RequestTimeoutError
from smbox_torch import Sandblaster
from smbox_torch.sandblaster.node_lbfgs import Pair
from smbox_torch.sandblaster.scheduler import PortionScheduler, Report
from smbox_torch.sandblaster.shared_state import Ticket

pytestmark = pytest.mark.shares

WAIT_S = 60.0


@pytest.fixture
def box(node):
    """One path is enough: what numbers do on each of them, test_node_lbfgs.py tells."""
    return node


@pytest.mark.parametrize(
    ("loss_of", "begin", "stop"),
    [
        (lambda x: (x - 2).square().sum(), 2.0, "gradient is zero"),
        (lambda x: 1e-170 * (x - 2).square().sum(), 0.0, "gradient is zero"),
        (lambda x: 1e170 * (x - 2).square().sum(), 0.0, "square is too large"),
        (lambda x: torch.nan * x.sum(), 0.0, "loss is infinite or NaN"),
        (lambda x: x.sum() + torch.inf, 0.0, "loss is infinite or NaN"),
        (lambda x: x.sum() - torch.inf, 0.0, "loss is infinite or NaN"),
        (lambda x: x.square().sum().sqrt(), 0.0, "gradient is infinite or NaN"),
        (lambda x: x.abs().sum() - 2 * x.detach().abs().sum(), 0.5, "none of 20 trials"),
    ],
)
def test_a_step_that_is_not_done_says_why_and_x_stays(box, run, follow, loss_of, begin, stop):
    x = torch.full((3,), begin, dtype=torch.float64)
    with ThreadPoolExecutor(1) as pool:
        with Sandblaster(box, [x], run, workers=1, portions=1, timeout_s=WAIT_S) as optimizer:
            worker = pool.submit(follow, run, loss_of)
            for _ in range(2):
                done = optimizer.step()
                assert stop in done.stop
                assert done.size == 0.0
                assert len(optimizer.vectors.pairs) == 0
            assert optimizer.vectors.x.get().tolist() == [begin] * 3
        worker.result(WAIT_S)


def test_a_trial_whose_loss_is_not_finite_is_made_shorter(box, run, follow):
    """f is infinite, NaN or minus infinity one long step away; the minimum is 1."""

    def loss_of(x):
        edge = torch.where(x > 2, torch.nan, torch.where(x > 1.5, -torch.inf, 0.0))
        return (10 * (x - 1).square() + edge).sum()

    x = torch.full((3,), 0.9, dtype=torch.float64)
    with ThreadPoolExecutor(1) as pool:
        with Sandblaster(box, [x], run, workers=1, portions=1, timeout_s=WAIT_S) as optimizer:
            worker = pool.submit(follow, run, loss_of)
            done = [optimizer.step() for _ in range(5)]
            assert all(np.isfinite(each.loss) for each in done)
            np.testing.assert_allclose(optimizer.vectors.x.get(), 1.0, rtol=1e-6)
        worker.result(WAIT_S)


@pytest.mark.parametrize("scale", [1e-2, 1e30, 1e100])
def test_the_minimum_is_found_whatever_the_scale(box, run, follow, scale):
    curves = torch.tensor([1.0, 7.0, 30.0], dtype=torch.float64)
    x = torch.full((3,), 3.0, dtype=torch.float64)
    with ThreadPoolExecutor(1) as pool:
        with Sandblaster(box, [x], run, workers=1, portions=1, timeout_s=WAIT_S) as optimizer:
            worker = pool.submit(
                follow, run, lambda x: scale * (curves * (x - 1).square()).sum()
            )
            for _ in range(20):
                optimizer.step()
            np.testing.assert_allclose(optimizer.vectors.x.get(), 1.0, rtol=1e-6)
        worker.result(WAIT_S)


def test_a_step_after_an_evaluation_that_failed_has_the_whole_gradient(
    box, run, follow, monkeypatch
):
    def first_only(timeout_s):
        yield next(PortionScheduler.reports(optimizer.portions, timeout_s))
        raise RequestTimeoutError("no worker reported")

    ends = []
    for name, fails in ((f"{run}-a", False), (f"{run}-b", True)):
        x = torch.full((3,), 5.0, dtype=torch.float64)
        with ThreadPoolExecutor(1) as pool:
            with Sandblaster(box, [x], name, workers=1, portions=2) as optimizer:
                worker = pool.submit(follow, name, lambda x: (x - 2).pow(4).sum())
                optimizer.step()
                if fails:
                    with monkeypatch.context() as patch:
                        patch.setattr(optimizer.portions, "reports", first_only)
                        with pytest.raises(RequestTimeoutError):
                            optimizer.evaluate()
                optimizer.step()
                ends.append(optimizer.vectors.x.get().tolist())
            worker.result(WAIT_S)
    assert ends[0] == ends[1]


def script(optimizer, *losses):
    """Let each evaluation find the gradient 1 and the next of these losses, or raise it."""
    left = iter(losses)
    optimizer.portions.slots[0].put(np.ones(4))

    def reports(_):
        loss = next(left)
        if isinstance(loss, BaseException):
            raise loss
        yield Report(0, Ticket(1, 0), loss)

    optimizer.portions.reports = reports


@pytest.fixture
def scripted(node, run):
    x = torch.zeros(4, dtype=torch.float64)
    with Sandblaster(node, [x], run, workers=1, portions=1) as optimizer:
        yield optimizer


def test_a_trial_must_be_finite_and_lower_by_a_share_of_the_slope(scripted):
    script(scripted, 1.0, -math.inf, 1.0 - 0.5e-4, 0.9, 0.8)  # the slope is 4, t = 1/2, ...
    assert scripted.step() == (0.9, 0.125, 4, "")
    assert scripted.vectors.x.get().tolist() == [-0.125] * 4
    assert scripted.step().evaluations == 1  # f and g at x are known


def test_a_step_that_was_interrupted_leaves_x_and_the_next_begins_there(scripted):
    script(scripted, 1.0, KeyboardInterrupt(), 1.0, 0.5)
    with pytest.raises(KeyboardInterrupt):
        scripted.step()
    assert scripted.vectors.x.get().tolist() == [0] * 4
    assert scripted.step() == (0.5, 0.5, 2, "")


def test_a_trial_that_could_not_be_undone_is_undone_by_the_next_step(scripted, monkeypatch):
    def refuse():
        raise ConnectionError

    script(scripted, 1.0, RequestTimeoutError("no report"), 1.0, 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(scripted.vectors, "undo", refuse)
        with pytest.raises(ConnectionError):
            scripted.step()
    assert scripted.vectors.x.get().tolist() == [-0.5] * 4
    assert scripted.step() == (0.5, 0.5, 2, "")
    assert scripted.vectors.x.get().tolist() == [-0.5] * 4


def test_a_loss_that_is_not_finite_drops_the_pairs(scripted):
    script(scripted, math.inf)
    vectors = scripted.vectors
    vectors.pairs.append(Pair(scripted.portions.slots[0], vectors.gradient, 1.0, 1.0))
    assert scripted.step().size == 0.0
    assert len(vectors.pairs) == 0


@pytest.mark.parametrize("slope", [-1.0, 0.0, math.inf])
def test_a_direction_that_is_no_descent_gives_way_to_the_gradient(scripted, monkeypatch, slope):
    script(scripted, 1.0, 0.5)
    vectors, direct = scripted.vectors, scripted.vectors.direct
    vectors.pairs.append(Pair(scripted.portions.slots[0], vectors.gradient, 1.0, 1.0))
    monkeypatch.setattr(vectors, "direct", lambda: slope if vectors.pairs else direct())
    assert scripted.step() == (0.5, 0.5, 2, "")
