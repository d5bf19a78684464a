"""Inner optimizers with train() and eval() of their own, which move the parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import smbox
from smbox.errors import ConfigError
from smbox_torch import EASGD, Downpour, HybridSGD, ParameterServer, SyncGroup
from smbox_torch.world import World

BETA = 0.75


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD as in the package schedulefree, without foreach and warmup."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"k": 0, "train_mode": False})

    @torch.no_grad()
    def _move(self, weight: float, *, train_mode: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] is train_mode:
                continue
            for parameter in group["params"]:
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], weight)
            group["train_mode"] = train_mode

    def eval(self) -> None:
        self._move(1 - 1 / BETA, train_mode=False)

    def train(self) -> None:
        self._move(1 - BETA, train_mode=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("not in train mode")
            group["k"] += 1
            for y in group["params"]:
                z = self.state[y].setdefault("z", y.clone())
                share = 1 / group["k"]
                y.lerp_(z, share)
                y.add_(y.grad, alpha=0.125 * (BETA * (1 - share) - 1))
                z.sub_(y.grad, alpha=0.125)


def model() -> torch.nn.Linear:
    made = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters(), 1):
            parameter.fill_(number)
    return made


def values(made: torch.nn.Module) -> list[float]:
    return torch.cat([each.detach().flatten() for each in made.parameters()]).tolist()


def epoch(made: torch.nn.Module, optimizer: Any) -> None:
    """Train and end in eval mode, as the package demands of a script."""
    optimizer.train()
    for number in range(3):
        optimizer.zero_grad()
        made(torch.full((1, 3), 1.0 + number)).square().sum().div(16).backward()
        optimizer.step()
    optimizer.eval()


def expected() -> tuple[list[float], list[float]]:
    """Return the evaluated point after two epochs of a plain script, and that of gradients."""
    made = model()
    optimizer = ScheduleFree(made.parameters())
    for _ in range(2):
        epoch(made, optimizer)
    evaluated = values(made)
    optimizer.train()
    return evaluated, values(made)


def averaging(box: smbox.Box, made: torch.nn.Module, kind: type, world: World) -> Any:
    inner = ScheduleFree(made.parameters())
    return kind(inner, world=world) if kind is SyncGroup else kind(inner, box, "run", workers=1)


@pytest.mark.parametrize("kind", [SyncGroup, ParameterServer])
def test_ranks_with_equal_parameters_evaluate_the_averaged_point(kind: type, worlds):
    made, evaluated = model(), expected()[0]
    with smbox.local(memory="64MiB") as box:
        optimizer = averaging(box, made, kind, worlds(1, 1)[0])
        for _ in range(2):
            epoch(made, optimizer)
        assert values(made) == pytest.approx(evaluated)
        optimizer.train()
        optimizer.finish()
        assert values(made) == pytest.approx(evaluated)
        optimizer.eval()
        optimizer.train()
        assert values(made) == pytest.approx(evaluated)


@pytest.mark.parametrize("kind", [SyncGroup, ParameterServer])
def test_a_state_that_was_saved_between_eval_and_train_resumes(kind: type, worlds):
    made, evaluated = model(), expected()[0]
    with smbox.local(memory="64MiB") as box:
        first = averaging(box, made, kind, worlds(1, 1)[0])
        epoch(made, first)
        state = copy.deepcopy(first.state_dict())
        first.finish()
    with smbox.local(memory="64MiB") as box:
        resumed = model()
        second = averaging(box, resumed, kind, worlds(1, 1)[0])
        second.load_state_dict(state)
        epoch(resumed, second)
        second.finish()
    assert values(resumed) == pytest.approx(evaluated)


@pytest.mark.parametrize("calls", ["", "after", "before"])
def test_a_center_is_the_point_of_the_gradients_whatever_modes_are_called(calls: str):
    made = model()
    with smbox.local(memory="64MiB") as box:
        optimizer = Downpour(ScheduleFree(made.parameters()), box, "run", workers=1)
        for _ in range(2):
            epoch(made, optimizer)
            if calls == "after":
                optimizer.inner.eval()
            elif calls == "before":
                optimizer.train()
                optimizer.inner.eval()
                optimizer.eval()
        optimizer.finish()
    assert values(made) == pytest.approx(expected()[1])


@pytest.mark.parametrize("kind", [Downpour, EASGD, HybridSGD])
def test_after_finish_the_inner_mode_leaves_the_center(kind: type, worlds):
    alone: dict[str, Any] = {"world": worlds(1, 1)[0]} if kind is HybridSGD else {"workers": 1}
    made, target = model(), model()
    with smbox.local(memory="64MiB") as box:
        optimizer = kind(ScheduleFree(made.parameters()), box, "run", **alone)
        epoch(made, optimizer)
        optimizer.finish()
        center = values(made)
        optimizer.train()
        optimizer.inner.eval()  # as Trainer does before it evaluates
        assert values(made) == center
        again = Downpour(optimizer.inner, box, "again", workers=1)
        epoch(made, again)
        again.center_into(target)
        again.finish()
        assert values(made) == values(target)


def test_a_mode_does_not_hide_a_change_before_the_first_step():
    made = model()
    with (
        smbox.local("64MiB") as box,
        EASGD(ScheduleFree(made.parameters()), box, "run", workers=1) as opt,
    ):
        with torch.no_grad():
            made.weight.add_(1.0)
        opt.train()
        made(torch.ones(1, 3)).sum().backward()
        with pytest.raises(ConfigError, match="load the model before"):
            opt.step()


def test_an_inner_optimizer_in_eval_mode_is_wrapped_at_the_point_of_the_gradients():
    made = model()
    inner = ScheduleFree(made.parameters())
    epoch(made, inner)
    inner.train()
    wanted = values(made)
    inner.eval()
    with smbox.local("64MiB") as box, EASGD(inner, box, "run", workers=1) as opt:
        assert values(made) == pytest.approx(wanted)
        opt.step()
