from __future__ import annotations

import pytest

from smbox.memory.insist import insist


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


def test_other_errors_come_through():
    with pytest.raises(ZeroDivisionError):
        insist(lambda: 1 / 0)
