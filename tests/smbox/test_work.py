"""Pauses between polls: a wait is prolonged by little, and a long one polls seldom."""

from __future__ import annotations

import pytest

import smbox.work
from smbox.work import Pause


@pytest.mark.parametrize(("wait_s", "polls_max"), [(0.01, 100), (1.0, 500)])
def test_a_wait_is_prolonged_by_little_and_polls_seldom(monkeypatch, wait_s, polls_max):
    now_s, polls = 100.0, 0

    def move(seconds: float = 10e-6):
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(smbox.work.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(smbox.work.time, "sleep", move)
    monkeypatch.setattr(smbox.work.os, "sched_yield", move)
    pause = Pause()
    while now_s < 100.0 + wait_s:
        assert pause.sleep(200.0)
        polls += 1
    assert now_s - 100.0 - wait_s < min(wait_s / 7, 0.0031)
    assert polls < polls_max
    assert not pause.sleep(now_s)
