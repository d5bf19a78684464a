from __future__ import annotations

from contextvars import ContextVar

import numpy as np
import pytest

from smbox.memory import quiet
from smbox.memory.quiet import quietly

HUGE = np.array([3e38], np.float32)
VISITED: ContextVar[str] = ContextVar("VISITED", default="nowhere")


@pytest.fixture(params=["as numpy 2 keeps it", "as numpy 1 keeps it"], autouse=True)
def way(request, monkeypatch):
    if request.param == "as numpy 1 keeps it":
        monkeypatch.setattr(quiet, "_STATE", None)


def check_that_numpy_warns():
    with pytest.warns(RuntimeWarning, match="overflow"):
        np.multiply(HUGE, HUGE)


def test_nothing_warns_inside_and_everything_outside():
    assert quietly(np.multiply, HUGE, HUGE) == np.inf
    assert np.isnan(quietly(np.subtract, np.inf, np.inf))
    assert quietly(np.divide, 1.0, np.zeros(1)) == np.inf
    check_that_numpy_warns()


def test_one_inside_another():
    assert quietly(lambda: [quietly(np.multiply, HUGE, HUGE), np.multiply(HUGE, HUGE)])
    check_that_numpy_warns()


def test_an_error_comes_through():
    with pytest.raises(ValueError, match="broadcast"):
        quietly(np.add, np.zeros(2), np.zeros(3))
    check_that_numpy_warns()


def test_what_the_caller_had_set_is_set_again():
    with np.errstate(over="raise"):
        quietly(np.multiply, HUGE, HUGE)
        with pytest.raises(FloatingPointError):
            np.multiply(HUGE, HUGE)


def test_a_handler_that_strikes_inside_is_where_the_caller_is():
    token = VISITED.set("outside")
    try:
        assert quietly(VISITED.get) == "outside"
        quietly(VISITED.set, "inside")
        assert VISITED.get() == "inside"
    finally:
        VISITED.reset(token)


def test_a_numpy_that_keeps_it_elsewhere_is_left_as_it_was(monkeypatch):
    kept = []
    monkeypatch.setattr(np, "seterr", lambda **wanted: kept.append(wanted))
    assert quiet._quiet_state() is None
    assert kept == [{"all": "ignore"}]
