from __future__ import annotations

import time

import pytest

from smbox_torch.optimizer.stats import Recorder


def test_counts_add_up():
    recorder = Recorder()
    recorder.exchange(took_s=0.010, nbytes=100)
    recorder.exchange(took_s=0.030, nbytes=100)
    recorder.waited(0.010)
    for others in (0, 2, 2, -1):
        recorder.behind(others)
    stats = recorder.snapshot()
    assert (stats.exchanges, stats.nbytes) == (2, 200)
    assert stats.exchange_ms == pytest.approx(40)
    assert stats.hidden_ms == pytest.approx(30)
    assert stats.hidden_share == pytest.approx(0.75)
    assert stats.staleness == {0: 2, 2: 2}
    assert stats.staleness_mean == 1.0


def test_a_snapshot_does_not_change_any_more():
    recorder = Recorder()
    before = recorder.snapshot()
    recorder.behind(1)
    assert before.staleness == {}


def test_nothing_done_is_nothing_hidden():
    stats = Recorder().snapshot()
    assert (stats.hidden_share, stats.staleness_mean) == (0.0, 0.0)


def test_waiting_longer_than_the_exchange_hides_nothing():
    recorder = Recorder()
    recorder.exchange(took_s=0.1, nbytes=0)
    recorder.waited(0.2)
    assert recorder.snapshot().hidden_ms == 0


def test_a_log_gets_every_figure():
    figures = Recorder(steps=3).snapshot().as_dict()
    assert figures["steps"] == 3
    assert {"staleness", "waited_ms", "hidden_ms", "hidden_share", "nbytes"} <= set(figures)


def test_waits_for_other_workers_are_not_blamed_on_the_memory(monkeypatch):
    """A warning would propose to exchange less, which does not help against a slow worker."""
    seen: list[float] = []
    recorder = Recorder()
    monkeypatch.setattr(recorder.watch, "observe", lambda waited_s, *_: seen.append(waited_s))
    with recorder.waiting_for_others():
        time.sleep(0.05)
    recorder.waited(0.05 + 0.25)
    recorder.step()
    assert 0.0 < seen[0] <= 0.25
    assert recorder.snapshot().waited_ms == pytest.approx(300.0)
