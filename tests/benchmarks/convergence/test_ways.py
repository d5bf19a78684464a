from __future__ import annotations

import pytest
from ways import KINDS, WAYS, Way, schedule


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_way_can_be_built_and_divides_into_its_nodes(way: Way):
    assert way.kind in KINDS
    assert way.workers % way.nodes == 0
    assert way.lr > 0


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_all_ways_see_equally_many_pictures(way: Way):
    samples = way.steps(50_000, 8) * way.workers * way.batch
    assert samples == pytest.approx(400_000 * way.part, rel=1e-3)


def test_the_learning_rate_rises_and_falls_to_zero():
    rates = [schedule(0.4, step / 100) for step in range(101)]
    assert rates[0] == 0.0
    assert max(rates) == rates[5] == pytest.approx(0.4)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] == pytest.approx(0.0)
