from __future__ import annotations

import pytest
from server_or_ring.rows import Row
from server_or_ring.running import between, figures
from server_or_ring.worker import QUIET_S

ROW = Row("even", "server-sync", 2, scale=4.0, compute_s=2.0, batch=8, iterations=5)
BEGAN_S, ENDED_S = 100.0, 105.0


def sample(clock_s: float, host: str, **used: float) -> dict:
    none = dict.fromkeys(("in_bytes", "in_packets", "out_bytes", "out_packets", "cpu_s"), 0)
    return {"clock_s": clock_s, "host": host, **none, **used}


def test_what_was_used_between_two_moments_counts_samples_by_their_share():
    samples = [sample(float(t), "node", in_bytes=100) for t in range(5)]
    assert between(samples, "in_bytes", 1.0, 3.0) == 200
    assert between(samples, "in_bytes", 1.5, 1.75) == 25
    assert between(samples, "in_bytes", -5.0, 50.0) == 400  # the first has no beginning
    assert between(samples, "in_bytes", 9.0, 10.0) == 0


def test_figures_are_of_the_whole_model_and_of_one_iteration():
    reports = [
        {"began_s": BEGAN_S, "ended_s": 104.0},
        {"began_s": 100.25, "ended_s": ENDED_S},
    ]
    quiet = BEGAN_S - QUIET_S / 2
    samples = [
        sample(90.0, "node"),
        sample(quiet, "node", in_bytes=7e9),  # before: making the regions
        sample(103.0, "node", in_bytes=40e6, in_packets=4000, cpu_s=2.0),
        sample(ENDED_S + QUIET_S, "node", in_bytes=10e6, out_bytes=5e6, cpu_s=0.9),
        sample(110.0, "node", in_bytes=9e9),
    ]
    found = figures(ROW, 1000, reports, samples)
    assert found["iteration_s"] == pytest.approx(5.0 / 5 * 4)
    assert found["images_per_s"] == pytest.approx(2 * 8 / 4.0)
    assert found["speed_up"] == pytest.approx(2 * 2.0 / 4.0)
    assert found["utilisation"] == pytest.approx(0.5)
    assert found["hosts"]["node"]["in_bytes"] == pytest.approx(50e6 / 5 * 4)
    assert found["hosts"]["node"]["in_packets"] == pytest.approx(4000 / 5 * 4)
    assert found["hosts"]["node"]["out_bytes"] == pytest.approx(5e6 / 5 * 4)
    assert found["cores"] == pytest.approx(2.9 / (5.0 + 1.5 * QUIET_S))
    over_time = found["over_time"]["node"]
    assert [3.0, 40e6, 4000, 0, 0] in over_time
    assert all(abs(each[0]) < 7 for each in over_time)
