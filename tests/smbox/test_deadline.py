from __future__ import annotations

import math
import time

import pytest

from smbox.deadline import (
    ANSWER_MIN_S,
    deadline_of,
    left_s,
    optional_timeout_s,
    request_timeout_s,
)


def test_a_deadline_is_on_the_monotonic_clock():
    assert deadline_of(math.inf) == math.inf
    assert time.monotonic() + 99 < deadline_of(100.0) <= time.monotonic() + 100


@pytest.mark.parametrize(
    ("ahead_s", "left", "look"),
    [
        (math.inf, math.inf, math.inf),
        (9.0, 9.0, 9.0),
        (0.5, 0.5, ANSWER_MIN_S),
        (-0.5, 0.0, ANSWER_MIN_S - 0.5),
        (-9.0, 0.0, 0.0),
    ],
)
def test_all_looks_end_within_a_second_of_the_deadline(ahead_s, left, look):
    deadline_s = deadline_of(ahead_s)
    assert left_s(deadline_s) == pytest.approx(left, abs=0.1)
    assert request_timeout_s(deadline_s) == pytest.approx(look, abs=0.1)
    assert optional_timeout_s(deadline_s) == pytest.approx(look, abs=0.1)


def test_without_a_deadline_the_timeout_of_the_box_holds():
    assert optional_timeout_s(None) is None
