"""Two local and two remote clients while node, clients and links are killed: exactly once."""

from __future__ import annotations

import pytest

from smbox.testing.chaos.harness import FATES, Settings, run

pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.mark.timeout(900)
def test_sums_are_exact_whoever_is_killed():
    verdict = run(Settings(seed=2026, operations=8_000, kills=16, kills_inside=2, pace=8))
    assert verdict.faults == [], verdict.text()
    assert verdict.operations >= 8_000
    assert verdict.kills >= 16
    assert 2 <= verdict.kills_inside <= verdict.kills <= verdict.strikes
    assert set(verdict.fates) <= set(FATES)
