from __future__ import annotations

import time

from smbox_torch.planning.compute_time import SKIPPED, median_s


def test_the_time_is_that_of_one_computation():
    assert 0.01 <= median_s(lambda: time.sleep(0.01), 3) < 1.0


def test_rounds_to_warm_up_do_not_count(monkeypatch):
    now_s, lasts_s = 0.0, [100.0] * SKIPPED + [1.0, 6.0, 2.0]

    def compute():
        nonlocal now_s
        now_s += lasts_s.pop(0)

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    assert median_s(compute, 3) == 2.0
