from __future__ import annotations

import pytest
from intervals import Interval, interval, paired


def test_an_interval_is_students():
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])  # s = 1.5811, t(0.975, 4) = 2.7764
    assert found.mean == 3.0
    assert found.half == pytest.approx(1.9632, abs=1e-4)
    assert str(found) == "3.0 ± 2.0"
    assert found.signed == "+3.0 ± 2.0"


def test_one_value_has_no_interval():
    found = interval([-1.0])
    assert found == Interval(1, -1.0, None)
    assert found.signed == "-1.0 ± ?"
    assert found.is_at_most(100.0) == "undecided"


def test_pairs_are_of_equal_seeds():
    found = paired({0: 70.0, 1: 72.0, 2: 0.0}, {0: 71.0, 1: 73.0, 5: 0.0})
    assert (found.count, found.mean) == (2, -1.0)
    assert found.half == pytest.approx(0.0)
    assert paired({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (1.0, 0.4, "met"),
        (1.5, 0.0, "met"),
        (1.0, 0.6, "undecided"),
        (2.0, 0.6, "undecided"),
        (2.0, 0.4, "missed"),
        (1.0, None, "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval(mean: float, half: float | None, verdict: str):
    assert Interval(5, mean, half).is_at_most(1.5) == verdict
