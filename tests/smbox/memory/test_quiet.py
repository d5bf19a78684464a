from __future__ import annotations

from contextvars import ContextVar

import numpy as np
import pytest

from smbox.memory import quiet
from smbox.memory.quiet import quietly

HUGE = np.array([3e38], np.float32)


@pytest.fixture(params=["as numpy 2 does it", "as numpy 1 does it"])
def way(request, monkeypatch):
    if request.param == "as numpy 1 does it":
        monkeypatch.setattr(quiet, "_CONTEXT", None)


@pytest.mark.usefixtures("way")
def test_nothing_warns_inside_and_everything_outside():
    assert quietly(np.multiply, HUGE, HUGE) == np.inf
    with pytest.warns(RuntimeWarning, match="overflow"):
        np.multiply(HUGE, HUGE)


@pytest.mark.usefixtures("way")
def test_one_inside_another():
    assert quietly(lambda: quietly(np.multiply, HUGE, HUGE)) == np.inf


@pytest.mark.usefixtures("way")
def test_an_error_comes_through():
    with pytest.raises(ValueError, match="broadcast"):
        quietly(np.add, np.zeros(2), np.zeros(3))
    with pytest.warns(RuntimeWarning, match="overflow"):
        np.multiply(HUGE, HUGE)


def test_what_is_set_inside_stays_inside():
    found: ContextVar[int] = ContextVar("found")
    quietly(found.set, 1)
    assert found.get(0) == 0


def test_a_numpy_that_asks_the_thread_has_no_context(monkeypatch):
    monkeypatch.setattr(np, "__version__", "1.26.4")
    assert quiet._quiet_context() is None
