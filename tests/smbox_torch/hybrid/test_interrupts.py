"""An interrupt at every line of a rank's step; the ranks stay equal, or none steps any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smbox.errors import SmboxError
from smbox.testing.interrupts import interrupted
from smbox.testing.model_box import ModelBox
from smbox_torch.averaging import rendezvous
from smbox_torch.hybrid import hybrid
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.world import World

STEPS = 3


def train(
    world: World, box: ModelBox, second: Callable[..., None], **options
) -> list[float] | str:
    """Train; ``second(step)`` does the second step. Return x, or the error that ended it."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    one = HybridSGD(
        torch.optim.SGD(model.parameters(), 0.1),
        box.client(f"w{world.rank}") if world.is_group_root else None,
        "run",
        moving_rate=0.25,
        world=world,
        timeout_s=20.0,
        **options,
    )
    try:
        for step in range(STEPS):
            one.zero_grad()
            model(torch.full((2,), world.rank + 1.0)).sum().backward()
            if step == 1:
                second(one.step)
            else:
                one.step()
    except SmboxError as error:
        one.__exit__(type(error), error, None)
        return type(error).__name__
    one.close(exchange=False)
    return model.weight.flatten().tolist()


@pytest.mark.parametrize(
    ("options", "victim", "is_repeated"),
    [({}, 0, True), ({"overlap": True}, 0, True), ({"exchange": "seasgd"}, 1, False)],
    ids=["plain", "overlap", "seasgd"],
)
def test_no_rank_steps_with_other_parameters_after_an_interrupt_at_any_line(
    worlds, each, monkeypatch, options, victim: int, is_repeated: bool
):
    monkeypatch.setattr(rendezvous, "POLL_S", 0.01)  # how soon a rank that left is noticed
    at, is_hit = 0, True
    while is_hit:
        at += 1
        box = ModelBox()

        def second(step: Callable[[], object], at=at) -> None:
            nonlocal is_hit
            is_hit = interrupted(at, step, (hybrid.__file__,))
            if is_hit and is_repeated:
                step()

        def work(world: World, box=box, second=second) -> list[float] | str:
            mine = second if world.rank == victim else lambda step: step()
            return train(world, box, mine, **options)

        first, other = each(worlds(1, 2), work)
        assert isinstance(first, str) or isinstance(other, str) or first == other, at
    assert isinstance(first, list)
    assert at > 20
