"""What a leader of HogWild++ counts, and what it sends after it has loaded a state."""

from __future__ import annotations

import torch


def test_a_plain_state_loaded_by_a_leader_loses_no_step_for_the_next_cluster(leaders):
    xs, (first, second) = leaders(tolerance=0.0, update_delay=0)
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
