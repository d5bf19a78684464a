"""Two local and two remote clients while node, clients and links are killed: exactly once."""

from __future__ import annotations

import pytest

from smbox.testing.chaos.harness import Settings, run


@pytest.mark.timeout(900)
def test_sums_are_exact_whoever_is_killed():
    verdict = run(Settings(seed=2026, operations=20_000, kills=30, kills_inside=3, pace=20))
    assert verdict.faults == [], verdict.text()
    assert verdict.operations >= 20_000
    assert verdict.kills >= 30
    assert verdict.kills_inside >= 3
