"""Which parameters of a pipeline get a gradient: those that they get in one process."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smbox
from smbox.errors import ConfigError, WorkerLostError
from smbox_torch import Pipeline

pytestmark = pytest.mark.shares

X, Y = torch.linspace(-1, 1, 40).reshape(8, 5), torch.arange(8) % 3


class Detached(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


class Cut(nn.Linear):
    """It learns, and lets no gradient through."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


class First(nn.Linear):
    """Its output is a view of every fourth element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[:, 0]


class Column(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.unsqueeze(1))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def made(box: smbox.Box, stage: int, name: str, stages, **more) -> Pipeline:
    told = {"example": X, "loss": F.cross_entropy, "timeout_s": 60.0} | more
    return Pipeline(box, name, stages, stage=stage, **told)


def linear(*sizes: int) -> nn.Module:
    torch.manual_seed(sum(sizes))
    return nn.Linear(*sizes)


MODELS = {
    "no parameters": lambda: [linear(5, 4), nn.ReLU(), linear(4, 3)],
    "no parameters first": lambda: [nn.ReLU(inplace=False), linear(5, 4), linear(4, 3)],
    "no parameters last": lambda: [linear(5, 4), linear(4, 3), nn.Tanh()],
    "frozen first": lambda: [frozen(linear(5, 4)), nn.ReLU(inplace=True), linear(4, 3)],
    "frozen between": lambda: [linear(5, 4), frozen(linear(4, 6)), linear(6, 3)],
    "frozen last": lambda: [linear(5, 4), linear(4, 6), frozen(linear(6, 3))],
    "detached": lambda: [linear(5, 4), Detached(), linear(4, 3)],
    "strided": lambda: [First(5, 4), Column(1, 6), linear(6, 3)],
    "cut": lambda: [linear(5, 4), linear(4, 6), Cut(6, 3)],
}


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize(
    ("schedule", "model", "box"),
    [
        (*case, path)
        for case, path in zip(
            itertools.product(["1f1b", "gpipe"], MODELS), itertools.cycle(["shm", "tcp"])
        )
    ],
    indirect=["box"],
)
def test_gradients_pass_and_end_as_in_one_process(run_stages, name, model, schedule):
    modules = MODELS[model]()
    oracle = copy.deepcopy(modules)
    total = 0.0
    for x, y in zip(X.tensor_split(5), Y.tensor_split(5), strict=True):  # 2 and 1 rows
        loss = F.cross_entropy(nn.Sequential(*oracle)(x), y) * (len(x) / len(X))
        loss.backward()
        total += loss.item()

    def work(own, stage):
        told = {"micro_batches": 5, "schedule": schedule}
        with made(own, stage, name, modules, **told) as pipe:
            return pipe.forward_backward(X, Y)

    assert run_stages(3, work) == [total] * 3
    found = [each for module in modules for each in gradients(module)]
    wanted = [each for module in oracle for each in gradients(module)]
    assert any(each is not None for each in found)
    for one, other in zip(found, wanted, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_a_stage_is_thawed_while_the_pipeline_works(run_stages, name):
    modules = MODELS["frozen first"]()

    def work(own, stage):
        with made(own, stage, name, modules) as pipe:
            pipe.forward_backward(X, Y)
            before = gradients(pipe.module)
            pipe.module.requires_grad_()
            pipe.forward_backward(X, Y)
            return before, gradients(pipe.module)

    before, after = run_stages(3, work)[0]
    assert before == [None, None]
    assert all(each is not None and each.any() for each in after)


@torch.no_grad()
def without_graph(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y, targets)


def detached(y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y, targets).detach()


@pytest.mark.parametrize("loss", [without_graph, detached, F.cross_entropy])
def test_a_loss_without_gradient_is_refused_and_moves_nothing(
    left, box, run_stages, name, loss
):
    modules = MODELS["no parameters"]()
    if loss is F.cross_entropy:
        modules = [frozen(module) for module in modules]

    def work(own, stage):
        with made(own, stage, name, modules, loss=loss) as pipe:
            if stage == 2:
                with pytest.raises(ConfigError, match=r"requires no gradient.*no_grad"):
                    pipe.forward_backward(X, Y)
            else:
                with pytest.raises(WorkerLostError, match="stage 2 failed"):
                    pipe.forward_backward(X, Y)
            return gradients(pipe.module)

    assert run_stages(3, work) == [[None, None], [], [None, None]]
    assert left(box, name) == []


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_inference_mode_is_refused_and_moves_nothing(left, box, run_stages, name, bad):
    """The stage that made the mistake may go on; where it ends, the others learn it."""
    modules = MODELS["no parameters"]()

    def work(own, stage):
        with made(own, stage, name, modules) as pipe:
            if stage == bad:
                with torch.inference_mode(), pytest.raises(ConfigError, match="inference_mode"):
                    pipe.forward_backward(X, Y)
                assert all(each is None for each in gradients(pipe.module))
            assert pipe.forward_backward(X, Y) > 0.0
            if stage == bad:
                with torch.inference_mode():
                    pipe.forward_backward(X, Y)
            else:
                pipe.forward_backward(X, Y)

    def ending(own, stage):
        with pytest.raises(ConfigError if stage == bad else WorkerLostError) as caught:
            work(own, stage)
        return caught.value.message

    found = run_stages(3, ending)
    assert "inference_mode" in found.pop(bad)
    assert all(message.startswith(f"stage {bad} failed") for message in found)
    assert left(box, name) == []


def test_outputs_may_be_computed_in_inference_mode(run_stages, name):
    modules = MODELS["no parameters"]()

    def work(own, stage):
        with made(own, stage, name, modules) as pipe, torch.inference_mode():
            return pipe.forward(X)

    *_, found = run_stages(3, work)
    assert torch.equal(
        found, torch.cat([nn.Sequential(*modules)(x) for x in X.tensor_split(4)])
    )
