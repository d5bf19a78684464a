"""What a pipeline does with bad input, and with stages that do not do the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smbox
from smbox.errors import (
    ConfigError,
    LayoutMismatchError,
    RankTakenError,
    RequestTimeoutError,
    StepMismatchError,
    WorkerLostError,
)
from smbox_torch import Pipeline

pytestmark = pytest.mark.shares

ROWS = 16
SOUND = torch.ones(ROWS, 3, 8, 8), torch.zeros(ROWS, dtype=torch.int64)


def front() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())


def back() -> nn.Module:
    return nn.Linear(144, 3)


def made(
    box: smbox.Box, stage: int, name: str, stages=(front, back), **more: object
) -> Pipeline:
    """A pipeline of two stages, unless told otherwise."""
    told = {"example": SOUND[0], "loss": F.cross_entropy, "timeout_s": 60.0} | more
    return Pipeline(box, name, stages, stage=stage, **told)


def one_batch(x: torch.Tensor | None, y: torch.Tensor | None, bad: int):
    """What stage ``bad`` raises for a batch, and the loss of a sound one after it."""

    def work(own, stage, name):
        with made(own, stage, name) as pipe:
            if stage == bad:
                with pytest.raises(LayoutMismatchError):
                    pipe.forward_backward(x, y)
            assert all(p.grad is None for p in pipe.module.parameters())
            return pipe.forward_backward(*SOUND)

    return work


@pytest.mark.parametrize(
    ("x", "box"),
    [
        (None, "shm"),
        (torch.zeros(0, 3, 8, 8), "tcp"),
        (torch.zeros(17, 3, 8, 8), "shm"),
        (torch.zeros(4, 3, 8, 9), "tcp"),
        (torch.zeros(4, 3, 8), "shm"),
        (torch.zeros(4, 3, 8, 8, dtype=torch.float64), "tcp"),
    ],
    ids=["none", "no rows", "more rows", "wider", "fewer axes", "float64"],
    indirect=["box"],
)
def test_inputs_that_do_not_fit_move_nothing(run_stages, name, x):
    first, last = run_stages(2, one_batch(x, SOUND[1], 0), name)
    assert first == last > 0.0


def test_missing_targets_move_nothing(run_stages, name):
    first, last = run_stages(2, one_batch(SOUND[0], None, 1), name)
    assert first == last > 0.0


def test_targets_for_other_rows_end_the_pipeline_at_every_stage(left, box, run_stages, name):
    def work(own, stage):
        with made(own, stage, name) as pipe:
            with pytest.raises((WorkerLostError, LayoutMismatchError)[stage]) as caught:
                pipe.forward_backward(SOUND[0], SOUND[1][:-1])
            with pytest.raises(ConfigError, match="make it again"):
                pipe.forward_backward(*SOUND)
            return caught.value.facts

    first, last = run_stages(2, work)
    assert first["stage"] == 1
    assert (last["targets"], last["rows"]) == (15, 16)
    assert left(box, name) == []


def test_stages_that_do_different_things_are_told(run_stages, name):
    def work(own, stage):
        with made(own, stage, name) as pipe:
            if stage == 0:
                with pytest.raises(WorkerLostError):
                    pipe.forward_backward(*SOUND)
            else:
                with pytest.raises(StepMismatchError, match="stage 0 and this one"):
                    pipe.forward()

    run_stages(2, work)


def test_a_stage_that_has_finished_is_named(left, box, run_stages, name):
    """The last stage leaves after one batch; the first one begins another."""

    def work(own, stage):
        with made(own, stage, name, lease_s=2.0) as pipe:
            pipe.forward_backward(*SOUND)
            if stage == 0:
                with pytest.raises(WorkerLostError, match="stage 1 has left"):
                    pipe.forward_backward(*SOUND)

    run_stages(2, work)
    assert left(box, name) == []


def test_a_stage_that_does_not_come_is_named(run_stages, name):
    """The last stage lives, and begins no batch."""

    def work(own, stage):
        with made(own, stage, name, timeout_s=0.5) as pipe:
            if stage == 0:
                with pytest.raises(RequestTimeoutError, match="stage 1 did not respond"):
                    pipe.forward_backward(*SOUND)
                own.counter(f"{name}-over").add()
            else:
                own.counter(f"{name}-over").wait(1, timeout_s=60.0)

    run_stages(2, work)


def test_a_pipeline_without_loss_is_not_trained(run_stages, name):
    def work(own, stage):
        with made(own, stage, name, [front], loss=None) as pipe:
            with pytest.raises(ConfigError, match="needs loss="):
                pipe.forward_backward(*SOUND)
            assert pipe.forward(SOUND[0]).shape == (ROWS, 144)

    run_stages(1, work)


def test_a_stage_is_built_where_it_computes(run_stages, name):
    built: list[str] = []

    def builder(make):
        return lambda: built.append(make.__name__) or make()

    def work(own, stage):
        example = SOUND[0] if stage == 0 else None
        with made(own, stage, name, [builder(front), builder(back)], example=example) as pipe:
            pipe.forward(example)
            return type(pipe.module), pipe.is_first, pipe.is_last

    assert run_stages(2, work) == [(nn.Sequential, True, False), (nn.Linear, False, True)]
    assert sorted(built) == ["back", "front"]


def failing() -> nn.Module:
    raise ValueError("no weights here")


class Reduced(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=0)


class Whole(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).long()


@pytest.mark.parametrize(
    ("stages", "says", "box"),
    [
        ((front, back, back), "stage 2: the module cannot process float32[4, 3]", "shm"),
        (
            (front, nn.Identity(), nn.Linear(7, 3)),
            "stage 2: the module cannot process float32[4, 144]",
            "tcp",
        ),
        ((back, front, back), "stage 0: the module cannot process float32[4, 3, 8, 8]", "shm"),
        (
            (front, back().double(), back),
            "stage 1: the module cannot process float32[4, 144]",
            "tcp",
        ),
        (
            (front, Reduced(), nn.Identity()),
            "stage 1: the output must be a tensor with the rows",
            "shm",
        ),
        ((Whole(), nn.Identity(), nn.Identity()), "stage 0: no gradient can come back", "tcp"),
        ((front, failing, back), "stage 1: no module: ValueError: no weights here", "shm"),
        (
            (front, lambda: 3, back),
            "stage 1: a stage must be a torch.nn.Module, not int",
            "tcp",
        ),
    ],
    ids=["shape", "size", "first", "dtype", "rows", "integers", "builder", "no module"],
    indirect=["box"],
)
def test_stages_that_do_not_fit_are_refused_by_all_before_anything_moves(
    left, box, run_stages, name, stages, says
):
    def work(own, stage):
        with pytest.raises(ConfigError) as caught:
            made(own, stage, name, stages)
        return caught.value.message

    found = run_stages(3, work)
    assert set(found) == {found[0]}
    assert says in found[0]
    assert left(box, name) == []


@pytest.mark.parametrize("bad", [{"micro_batches": 2}, {"schedule": "gpipe"}, {"slots": 3}])
def test_stages_that_were_told_other_things_are_refused(left, box, run_stages, name, bad):
    def work(own, stage):
        with pytest.raises(
            ConfigError, match="stage 1 has other settings than stage 0"
        ) as caught:
            made(own, stage, name, (front, nn.Identity(), back), **(bad if stage == 1 else {}))
        return caught.value.message

    assert len(set(run_stages(3, work))) == 1
    assert left(box, name) == []


def test_a_missing_example_is_refused_by_all(left, box, run_stages, name):
    def work(own, stage):
        with pytest.raises(ConfigError, match="stage 0: the first stage needs example="):
            made(own, stage, name, example=None)

    run_stages(2, work)
    assert left(box, name) == []


@pytest.mark.parametrize(
    "bad", [{"schedule": "best"}, {"micro_batches": 0}, {"slots": 0}, {"stages": ()}]
)
def test_impossible_arguments_are_refused(box, name, bad):
    with pytest.raises(ConfigError):
        made(box, 0, name, **bad)
    assert [info.name for info in box.regions() if info.name.startswith(name)] == []


def test_a_stage_is_computed_by_one_process(run_stages, box, name):
    with made(box, 0, name, [back], example=torch.zeros(2, 144)) as pipe:
        with pytest.raises(RankTakenError):
            made(box, 0, name, [back], example=torch.zeros(2, 144))
        assert pipe.forward(torch.zeros(2, 144)).shape == (2, 3)


def test_the_agreement_draws_no_random_numbers(box, name):
    before = torch.get_rng_state()
    layers = nn.Dropout(0.5), nn.BatchNorm1d(144)
    stage = nn.Sequential(*layers)
    with made(box, 0, name, [stage], example=torch.zeros(8, 144)):
        assert torch.equal(torch.get_rng_state(), before)
        assert int(layers[1].num_batches_tracked) == 0
