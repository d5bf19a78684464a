from __future__ import annotations

import pytest
import sweep
from catalog import ROWS
from claims import CLAIMED, UNDECIDED
from estimate import START_S, estimator, prior_s
from rows import Settings

MOST_S = 12 * 3600


def test_the_whole_sweep_fits_into_twelve_hours():
    runs = sweep.wanted(sweep.arguments([]), list(ROWS))
    assert len(runs) == len(ROWS) + 4 * len(CLAIMED) + 5 * len(UNDECIDED)
    assert sum(map(prior_s, runs)) < MOST_S


def test_finished_runs_correct_the_estimate(made):
    easgd, sync = Settings(ROWS["easgd"], 1), Settings(ROWS["sync"], 0)
    twice = made("easgd", 0, 0.7, took_s=2 * prior_s(easgd))
    found = estimator([twice])
    assert found.seconds(easgd) == pytest.approx(2 * prior_s(easgd))
    assert found.seconds(sync) == pytest.approx(2 * prior_s(sync))


def test_waiting_for_a_slow_worker_takes_longer():
    slow, calm = Settings(ROWS["sync-slow"], 0), Settings(ROWS["sync-undisturbed"], 0)
    assert prior_s(slow) > 2 * prior_s(calm)


def test_a_smaller_set_takes_as_much_less():
    settings = Settings(ROWS["one"], 0)
    small, large = (estimator([], pictures).seconds(settings) for pictures in (450, 45_000))
    assert large == prior_s(settings)
    assert large - START_S == pytest.approx(100 * (small - START_S))
