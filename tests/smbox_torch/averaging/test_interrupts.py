"""An interrupt at every line of a rank's backward; then all ranks go on, and stay equal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from smbox_torch import SyncGroup
from smbox_torch.averaging import gradient_rounds, host_mean
from smbox_torch.world import World

TRACED = {module.__file__ for module in (gradient_rounds, host_mean)}
STEPS = 3


def interrupted(at: int, job: Callable[[], object]) -> bool:
    """Interrupt a job before its ``at``-th line of the averaging; return whether it has one."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in TRACED:
            return None
        lines += event == "line"
        if lines == at and event == "line":
            raise KeyboardInterrupt  # ends the tracing, too
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def train(world: World, victim: int, at: int) -> tuple[bool, list[float]]:
    """Train; one rank is interrupted in its second backward and ends the round."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    with SyncGroup(torch.optim.SGD(model.parameters(), 0.1), world=world, timeout_s=5.0) as one:
        x, is_hit = torch.full((2,), world.rank + 1.0), False

        def backward() -> None:
            one.zero_grad()
            model(x).sum().backward()

        for step in range(STEPS):
            if step == 1 and world.rank == victim:
                is_hit = interrupted(at, backward)
            else:
                backward()
            one.synchronize()
            one.step()
        return is_hit, [value for p in model.parameters() for value in p.flatten().tolist()]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_round_that_was_interrupted_at_any_line_can_be_ended(victim: int, run_ranks):
    at, is_over = 0, False
    while not is_over:
        at += 1
        (hit, first), (other, second) = run_ranks(2, lambda w, at=at: train(w, victim, at))
        assert first == second, at
        is_over = not (hit or other)
    assert at > 50
