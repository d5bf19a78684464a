"""What a leader of HogWild++ counts, and what it sends after it has loaded a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smbox_torch.hogwild.hogwild_pp import HogwildPP


@pytest.mark.parametrize(
    "state_of",
    [
        lambda leader: leader.inner.state_dict(),
        lambda leader: leader.state_dict(),
        lambda leader: leader.state_dict() | {"origin": None},
    ],
    ids=["plain", "own", "checkpoint"],
)
def test_a_state_loaded_by_a_leader_loses_no_step_for_the_next_cluster(
    leaders, state_of: Callable[[HogwildPP], dict[str, Any]]
):
    xs, (first, second) = leaders(tolerance=0.0, update_delay=0)
    second.step()
    first.step()  # the token goes to the other
    xs[0].grad = -torch.ones(1)
    first.step()
    first.load_state_dict(state_of(first))
    second.step()
    before = xs[1].item()
    xs[0].grad = None
    first.step()
    assert xs[1].item() - before > 0.5
    assert first.stats().exchanges == 2
    assert first.stats().waited_ms > 0.0


def test_a_cluster_that_is_restored_later_has_no_part_in_exchanges_before(leaders):
    xs, (first, second) = leaders(tolerance=0.0, update_delay=0)
    state = first.state_dict() | {"origin": None, "parameters": [torch.full((1,), 5.0)]}
    first.load_state_dict(state)
    xs[0].grad = -torch.ones(1)
    first.step()
    assert xs[0].item() == 6.0  # not mixed with what the other has not restored yet
    second.load_state_dict(state)
    for leader in (second, first, second):
        leader.step()
    assert xs[1].item() > 5.5  # the step reaches the other cluster afterwards
