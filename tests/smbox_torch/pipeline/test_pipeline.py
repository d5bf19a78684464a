"""A pipeline against its oracle: the same modules in turn, with the same micro-batches."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smbox
from smbox_torch import Pipeline

pytestmark = pytest.mark.shares

SEEDING = threading.Lock()  # torch has one generator for all threads
MODELS: dict[Callable[[], nn.Sequential], nn.Sequential] = {}
ROWS = 16
TIMEOUT_S = 60.0

Model = Callable[[], nn.Sequential]


def small() -> nn.Sequential:
    """Convolutions and batch norm, which sees micro-batches."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 5, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(5 * 2 * 2, 3),
    )


class Autocast(nn.Module):
    """A layer that computes in bfloat16, and gives what is of bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)


def cast() -> nn.Sequential:
    class Float(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float()

    return nn.Sequential(Autocast(), nn.ReLU(), Float(), nn.Flatten(), nn.Linear(6 * 36, 3))


def halves() -> nn.Sequential:
    return small().to(torch.bfloat16)


def made(model: Model) -> nn.Sequential:
    """A copy of the model, made once: stages that are built meanwhile use torch's seed, too."""
    with SEEDING:
        if model not in MODELS:
            torch.manual_seed(7)
            MODELS[model] = model()
        return copy.deepcopy(MODELS[model])


def batches(rows: Sequence[int], dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(count, 3, 8, 8, generator=random).to(dtype),
            torch.randint(0, 3, (count,), generator=random),
        )
        for count in rows
    ]


def loss_fn(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y.float(), targets)


def sgd(module: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def oracle(
    model: nn.Module, rows: Sequence[int], micro_batches: int, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """One process with the same micro-batches, whose gradients add up."""
    optimizer = sgd(model)
    losses = []
    for inputs, targets in batches(rows, dtype):
        optimizer.zero_grad()
        losses.append(0.0)
        count = min(micro_batches, len(inputs))
        for x, y in zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True):
            loss = loss_fn(model(x), y) * (len(x) / len(inputs))
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    return model.state_dict(), losses


def cut(model: nn.Sequential, cuts: Sequence[int]) -> list[nn.Sequential]:
    """The stages of a model; names of parameters stay."""
    at = [0, *cuts, len(model)]
    return [model[first:limit] for first, limit in itertools.pairwise(at)]


def pipelined(
    box: smbox.Box,
    stage: int,
    name: str,
    model: Model,
    cuts: Sequence[int],
    rows: Sequence[int],
    dtype: torch.dtype = torch.float32,
    **more: object,
) -> tuple[dict[str, torch.Tensor], list[float], Pipeline]:
    """One stage: its state after some batches, its losses, and the closed pipeline."""
    told = {"micro_batches": 4, "timeout_s": TIMEOUT_S} | more
    stages = cut(made(model), cuts)
    example = torch.empty(ROWS, 3, 8, 8, dtype=dtype)
    with Pipeline(
        box, name, stages, example=example, loss=loss_fn, stage=stage, **told
    ) as pipe:
        optimizer = sgd(pipe.module)
        losses = []
        for x, y in batches(rows, dtype):
            optimizer.zero_grad()
            losses.append(pipe.forward_backward(x, y))
            optimizer.step()
        return pipe.module.state_dict(), losses, pipe


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) for name in one
    )


def together(found: Sequence[tuple[dict[str, torch.Tensor], ...]]) -> dict[str, torch.Tensor]:
    return {name: tensor for state, *_ in found for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("schedule", "cuts", "box"),
    [
        ("1f1b", (4,), "tcp"),
        ("1f1b", (2, 5), "shm"),
        ("1f1b", (1, 4, 6), "tcp"),
        ("gpipe", (4,), "shm"),
        ("gpipe", (2, 5), "tcp"),
        ("gpipe", (1, 4, 6), "shm"),
    ],
    indirect=["box"],
)
def test_stages_equal_one_process_bit_for_bit(left, box, run_stages, name, cuts, schedule):
    def work(own, stage):
        return pipelined(own, stage, name, small, cuts, [16, 16, 16], schedule=schedule)

    found = run_stages(len(cuts) + 1, work)
    wanted, losses = oracle(made(small), [16, 16, 16], 4, torch.float32)
    before = made(small).state_dict()
    assert same(together(found), wanted)
    assert not same(together(found), before)  # they were trained
    assert [each[1] for each in found] == [losses] * len(found)
    assert left(box, name) == []


@pytest.mark.parametrize("micro_batches", [1, 3, 5, 16])
def test_batches_of_any_size_equal_one_process(box, run_stages, name, micro_batches):
    rows = [16, 13, 2, 1 + micro_batches % 7, 16]

    def work(own, stage):
        return pipelined(own, stage, name, flat, (2,), rows, micro_batches=micro_batches)

    found = run_stages(2, work)
    wanted, losses = oracle(made(flat), rows, micro_batches, torch.float32)
    assert same(together(found), wanted)
    assert [each[1] for each in found] == [losses] * 2


def flat() -> nn.Sequential:
    """No batch norm, which needs more than one row."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.GELU(), nn.Linear(7, 3))


@pytest.mark.parametrize(("model", "dtype"), [(halves, torch.bfloat16), (cast, torch.float32)])
def test_activations_of_bfloat16_equal_one_process(run_stages, name, model, dtype):
    def work(own, stage):
        return pipelined(own, stage, name, model, (2,), [16, 16], dtype)

    found = run_stages(2, work)
    wanted, losses = oracle(made(model), [16, 16], 4, dtype)
    assert same(together(found), wanted)
    assert found[0][1] == losses
    assert found[0][2].stats().nbytes == 2 * 2 * ROWS * 6 * (36 if model is cast else 64) * 2


def test_one_stage_alone_is_a_pipeline(run_stages, name):
    (found,) = run_stages(1, lambda box, stage: pipelined(box, stage, name, small, (), [16]))
    wanted, losses = oracle(made(small), [16], 4, torch.float32)
    assert same(found[0], wanted)
    assert found[1] == losses
    assert found[2].stats().nbytes == 0


@pytest.mark.parametrize(
    ("schedule", "held"), [("1f1b", [3, 2, 1]), ("gpipe", [6, 6, 6])], ids=["1f1b", "gpipe"]
)
def test_the_schedule_bounds_what_a_stage_keeps(run_stages, name, schedule, held):
    def work(own, stage):
        more = {"schedule": schedule, "micro_batches": 6, "slots": 1}
        return pipelined(own, stage, name, small, (1, 4), [16, 16], **more)

    found = run_stages(3, work)
    assert [each[2].stats().held_max for each in found] == held
    assert [each[2].stats().batches for each in found] == [2, 2, 2]
    assert same(together(found), oracle(made(small), [16, 16], 6, torch.float32)[0])


def test_outputs_are_those_of_one_process(run_stages, name):
    inputs = batches([16, 5], torch.float32)

    def work(own, stage):
        stages = cut(made(small), (2, 5))
        example = torch.empty(ROWS, 3, 8, 8)
        with Pipeline(own, name, stages, example=example, stage=stage) as pipe:
            pipe.module.eval()
            return [pipe.forward(x if stage == 0 else None) for x, _ in inputs]

    *others, last = run_stages(3, work)
    model = made(small).eval()
    with torch.no_grad():
        for (x, _), y in zip(inputs, last, strict=True):
            count = min(4, len(x))
            assert torch.equal(y, torch.cat([model(part) for part in x.tensor_split(count)]))
            assert not y.requires_grad
    assert others == [[None, None], [None, None]]


def test_training_and_evaluation_take_turns(run_stages, name):
    def work(own, stage):
        stages = cut(made(small), (4,))
        example = torch.empty(ROWS, 3, 8, 8)
        with Pipeline(own, name, stages, example=example, loss=loss_fn, stage=stage) as pipe:
            optimizer = sgd(pipe.module)
            found = []
            for x, y in batches([16, 16, 16], torch.float32):
                optimizer.zero_grad()
                pipe.forward_backward(x, y)
                optimizer.step()
                pipe.module.eval()
                found.append(pipe.forward(x))
                pipe.module.train()
            return found

    _, found = run_stages(2, work)
    model = made(small)
    for rows, y in zip([1, 2, 3], found, strict=True):
        state, _ = oracle(made(small), [16] * rows, 4, torch.float32)
        model.load_state_dict(state)
        x, _ = batches([16] * rows, torch.float32)[-1]
        with torch.no_grad():
            wanted = torch.cat([model.eval()(part) for part in x.tensor_split(4)])
        assert torch.equal(y, wanted)


def test_a_state_is_loaded_stage_by_stage(run_stages, name):
    """A run that is interrupted goes on from each stage's own state, under the same name."""

    def train(own, stage, states, rows):
        stages = cut(made(small), (4,))
        x = torch.empty(ROWS, 3, 8, 8)
        with Pipeline(own, name, stages, example=x, loss=loss_fn, stage=stage) as pipe:
            optimizer = sgd(pipe.module)
            if states:
                pipe.module.load_state_dict(states[stage][0])
                optimizer.load_state_dict(states[stage][1])
            for x, y in batches([16] * 4, torch.float32)[rows]:
                optimizer.zero_grad()
                pipe.forward_backward(x, y)
                optimizer.step()
            return pipe.module.state_dict(), optimizer.state_dict()

    states = run_stages(2, train, None, slice(0, 2))
    found = run_stages(2, train, states, slice(2, 4))
    assert same(together(found), oracle(made(small), [16] * 4, 4, torch.float32)[0])
