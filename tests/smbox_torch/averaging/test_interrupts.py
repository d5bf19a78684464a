"""An interrupt at every line of a rank's backward; then all ranks go on, and stay equal."""

from __future__ import annotations

import pytest
import torch

from smbox.testing.interrupts import interrupted
from smbox_torch import SyncGroup
from smbox_torch.averaging import gradient_rounds, host_mean
from smbox_torch.world import World

TRACED = (gradient_rounds.__file__, host_mean.__file__)
STEPS = 3


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
                is_hit = interrupted(at, backward, TRACED)
            else:
                backward()
            one.synchronize()
            one.step()
        return is_hit, [value for p in model.parameters() for value in p.flatten().tolist()]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_round_that_was_interrupted_at_any_line_can_be_ended(victim: int, run_ranks):
    at, is_over = 0, False
    while not is_over:
        at += 2 if at > 50 else 1  # of the rest, every other one
        (hit, first), (other, second) = run_ranks(2, lambda w, at=at: train(w, victim, at))
        assert first == second, at
        is_over = not (hit or other)
    assert at > 50
