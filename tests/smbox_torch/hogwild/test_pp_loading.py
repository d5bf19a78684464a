"""What a leader of HogWild++ counts, and what it sends after it has loaded a state."""

from __future__ import annotations

import torch

from smbox_torch.hogwild.hogwild_pp import HogwildPP
from smbox_torch.world import World


def test_a_plain_state_loaded_by_a_leader_loses_no_step_for_the_next_cluster(open_box):
    xs = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    first, second = (
        HogwildPP(
            torch.optim.SGD([x], lr=1.0),
            open_box(),
            "run",
            clusters=2,
            world=World(rank, rank, 2, 2),
            tolerance=0.0,
            update_delay=0,
        )
        for rank, x in enumerate(xs)
    )
    with first, second:
        first.step()  # the token goes to the other
        xs[0].grad = -torch.ones(1)
        first.step()
        first.load_state_dict(first.inner.state_dict())
        second.step()
        before = xs[1].item()
        xs[0].grad = None
        first.step()
        assert xs[1].item() - before > 0.5
        assert first.stats().exchanges == 2
        assert first.stats().waited_ms > 0.0
