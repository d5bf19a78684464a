"""A stage that ends is named by all others at once, whatever they wait for.

Leases are long and timeouts infinite: nothing but the stage itself can tell the others in time.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smbox
from smbox.errors import ConfigError, LayoutMismatchError, StepMismatchError, WorkerLostError
from smbox_torch import Pipeline
from smbox_torch.pipeline.building import BuiltStage

pytestmark = pytest.mark.shares

X, Y = torch.ones(8, 5), torch.zeros(8, dtype=torch.int64)
AT_ONCE_S = 40.0  # on a busy machine; what only a lease tells takes 100 s


class Broken(Exception):
    """What a user's code raises."""


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise Broken


class Layer(nn.Module):
    """A linear layer that goes wrong when it is told so."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(*sizes)
        self.wrong = ""

    def forward(self, x: torch.Tensor) -> object:
        y = self.inner(x)
        match self.wrong:
            case "forward":
                raise Broken
            case "interrupt":
                raise KeyboardInterrupt
            case "backward":
                return Refusing.apply(y)
            case "tuple":
                return (y,)
            case "dict":
                return {"y": y}
            case "dtype":
                return y.double()
            case "rows":
                return y[:-1]
        return y


def stages() -> list[Layer]:
    return [Layer(5, 4), Layer(4, 6), Layer(6, 3)]


def broken_loss(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise Broken


def text_loss(y: torch.Tensor, targets: torch.Tensor) -> str:
    return "0.5"


def many_losses(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y, targets, reduction="none")


def made(box: smbox.Box, stage: int, name: str, **more) -> Pipeline:
    told = {"example": X, "loss": F.cross_entropy, "timeout_s": math.inf, "lease_s": 400.0}
    return Pipeline(box, name, stages(), stage=stage, **(told | more))


@pytest.fixture
def run_failing(left, box, run_stages, name):
    """``run_failing(bad, kind, fail)``: stage ``bad`` fails by that after a sound batch.

    All others are to name it, at once, and leave nothing.
    """
    began_s = [0.0]

    def run(bad, kind, fail, how="failed"):
        def work(own, stage):
            with made(own, stage, name) as pipe:
                assert pipe.forward_backward(X, Y) > 0.0
                began_s[0] = time.monotonic()
                if stage == bad:
                    fail(pipe)
                else:
                    pipe.forward_backward(X, Y)
                    pipe.forward_backward(X, Y)

        def ending(own, stage):
            with pytest.raises(kind if stage == bad else WorkerLostError) as caught:
                work(own, stage)
            if stage != bad:
                facts = caught.value.facts
                assert (facts["stage"], facts["how"]) == (bad, how)
                assert facts["pid"] is not None

        run_stages(3, ending)
        assert time.monotonic() - began_s[0] < AT_ONCE_S
        assert left(box, name) == []

    return run


def on_a_path(names: str, cases: Iterable[tuple]) -> pytest.MarkDecorator:
    """One case on mapped memory, the next over tcp: why a stage ends differs on none."""
    found = [(*case, path) for case, path in zip(cases, itertools.cycle(("shm", "tcp")))]
    return pytest.mark.parametrize((*names.split(), "box"), found, indirect=["box"])


WRONG = {
    "forward": Broken,
    "backward": Broken,
    "interrupt": KeyboardInterrupt,
    "dtype": LayoutMismatchError,
    "rows": LayoutMismatchError,
    "tuple": LayoutMismatchError,
    "dict": LayoutMismatchError,
}


@on_a_path("bad wrong", itertools.product([0, 1], WRONG))
def test_a_stage_that_fails_in_a_batch_is_named_by_all_at_once(run_failing, wrong, bad):
    def fail(pipe: Pipeline) -> None:
        pipe.module.wrong = wrong
        pipe.forward_backward(X, Y)

    run_failing(bad, WRONG[wrong], fail)


@on_a_path("wrong", [("forward",), ("backward",), ("interrupt",), ("rows",), ("tuple",)])
def test_a_last_stage_that_fails_in_a_batch_is_named_by_all_at_once(run_failing, wrong):
    def fail(pipe: Pipeline) -> None:
        pipe.module.wrong = wrong
        pipe.forward_backward(X, Y)

    run_failing(2, WRONG[wrong], fail)


@on_a_path(
    "loss kind", [(broken_loss, Broken), (text_loss, ConfigError), (many_losses, ConfigError)]
)
def test_a_loss_that_fails_is_told_to_all_at_once(left, box, run_stages, name, loss, kind):
    def work(own, stage):
        with made(own, stage, name, loss=loss) as pipe:
            with pytest.raises(kind if stage == 2 else WorkerLostError) as caught:
                pipe.forward_backward(X, Y)
            assert stage == 2 or caught.value.message.startswith("stage 2 failed")

    began_s = time.monotonic()
    run_stages(3, work)
    assert time.monotonic() - began_s < AT_ONCE_S
    assert left(box, name) == []


@on_a_path("bad", [(0,), (1,), (2,)])
def test_an_error_between_batches_is_told_to_all_at_once(run_failing, bad):
    def fail(pipe: Pipeline) -> None:
        raise Broken

    run_failing(bad, Broken, fail)


@on_a_path("bad", [(2,), (0,), (1,)])
def test_a_stage_that_closes_is_named_by_all_at_once(run_failing, bad):
    def fail(pipe: Pipeline) -> None:
        pipe.close()
        raise Broken

    run_failing(bad, Broken, fail, how="left")


def test_a_box_that_closes_waits_for_a_stage_that_another_thread_closes(
    left, box, run_stages, name, monkeypatch
):
    """It was closed first: the others were told late, and regions stayed."""
    shut_down, threads, built = BuiltStage.shut_down, [], threading.Barrier(3)

    def shut_down_late(stage, own, exit_):
        thread = threading.Thread(target=own.close)
        threads.append(thread)
        thread.start()
        thread.join(0.05)  # on a busy machine a defect may stay unseen
        shut_down(stage, own, exit_)

    def work(own, stage):
        pipe = made(own, stage, name)
        built.wait()
        pipe.close()

    monkeypatch.setattr(BuiltStage, "shut_down", shut_down_late)
    run_stages(3, work)
    for thread in threads:
        thread.join()
    assert left(box, name) == []


@on_a_path("bad", [(1,), (2,)])
def test_a_stage_that_evaluates_alone_ends_all_at_once(run_failing, bad):
    run_failing(bad, StepMismatchError, lambda pipe: pipe.forward(X))


def test_a_first_stage_that_evaluates_alone_ends_all_at_once(left, box, run_stages, name):
    kinds = WorkerLostError, StepMismatchError, WorkerLostError

    def work(own, stage):
        with made(own, stage, name) as pipe:
            assert pipe.forward_backward(X, Y) > 0.0
            if stage == 0:
                pipe.forward(X)  # more of them than there are slots
            with pytest.raises(kinds[stage]):
                pipe.forward_backward(X, Y)

    with pytest.raises(WorkerLostError, match="stage 1 failed"):
        run_stages(3, work)
    assert left(box, name) == []


def test_a_batch_that_is_whole_is_finished_though_the_sender_has_left(run_stages, name):
    """The first stage closes as soon as all of its batch is under way."""

    def work(own, stage):
        with made(own, stage, name, slots=4) as pipe:
            return pipe.forward(X)

    assert run_stages(3, work)[2].shape == (8, 3)


def test_numbers_that_are_none_pass(run_stages, name):
    """As in one process: the loss tells, and the user decides."""

    def work(own, stage):
        with made(own, stage, name) as pipe:
            return pipe.forward_backward(X * math.nan, Y), pipe.forward_backward(X, Y)

    for bad, good in run_stages(3, work):
        assert math.isnan(bad)
        assert good > 0.0
