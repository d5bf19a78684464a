from __future__ import annotations

import pytest

from smbox.memory.insist import TRIES, insist


def test_what_is_not_interrupted_runs_once():
    calls = []
    insist(lambda: calls.append(1))
    assert calls == [1]


def test_an_interrupt_is_passed_on_after_the_end():
    calls = []

    def settle() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        insist(settle)
    assert len(calls) == 3


def test_its_own_errors_come_through():
    with pytest.raises(ZeroDivisionError):
        insist(lambda: 1 / 0)


def test_what_a_signals_handler_raises_is_passed_on_after_the_end():
    calls = []

    def settle() -> None:
        calls.append(1)
        if len(calls) < TRIES:
            raise TimeoutError("of a handler")

    with pytest.raises(TimeoutError):
        insist(settle)
    assert len(calls) == TRIES
