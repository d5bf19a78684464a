from __future__ import annotations

import json
import statistics

import pytest
import step_overhead
from step_contest import ALGORITHMS, Times
from step_overhead import lines, table
from step_profile import CATEGORIES

SHARES = dict.fromkeys(CATEGORIES, 0.01)


def times(*ratios: float) -> Times:
    return Times([2.0] * len(ratios), [2.0 * ratio for ratio in ratios], SHARES)


def test_goals_are_those_of_the_project():
    goals = {name: each.goal for name, each in ALGORITHMS.items() if each.goal is not None}
    assert goals == {
        "EASGD, period 10": 0.04,
        "EASGD, period 1": 0.15,
        "HybridSGD, period 10": 0.20,
        "HybridSGD, period 1": 0.20,
        "SyncGroup": 0.20,
        "Downpour": 0.20,
        "SSP": 0.20,
    }
    overlapped = [each for each in ALGORITHMS.values() if each.overlaps]
    assert len(overlapped) == 4
    assert all(each.overlaps in ALGORITHMS for each in overlapped)


def test_a_goal_is_met_by_the_median_of_the_ratios():
    (met,) = lines({"SSP": times(1.1, 1.2, 1.9)})
    assert met.overhead == pytest.approx(0.2)
    assert (met.goal, met.verdict) == ("20%", "met")
    (missed,) = lines({"SSP": times(1.1, 1.21, 1.2, 1.9)})
    assert missed.verdict == "missed"
    assert missed.low < missed.overhead < missed.high


def test_overlap_is_slower_only_beyond_the_spread():
    plain = times(1.2, 1.2, 1.2, 1.2)
    for ratios, verdict in (((1.1, 1.3, 1.2, 1.4), "met"), ((1.3, 1.4, 1.5, 1.6), "missed")):
        found = lines({"EASGD, period 1": plain, "EASGD, period 1, overlap": times(*ratios)})
        assert found[1].verdict == verdict


def test_the_table_tells_where_the_time_goes():
    shown = table(lines({"EASGD, period 10": times(1.03, 1.03)})).splitlines()
    assert shown[0].endswith("| exchange | copies | waiting | Python |")
    assert shown[2] == (
        "| EASGD, period 10 | 2.00 | 2.06 | +3.0% | +3.0% to +3.0% | 4% | met "
        "| 1.0% | 1.0% | 1.0% | 1.0% |"
    )


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_two_workers_are_measured(capsys: pytest.CaptureFixture[str]):
    step_overhead.main(["--rounds", "1", "--only", "EASGD, period 10*", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in found] == [
        "EASGD, period 10",
        "EASGD, period 10, overlap",
    ]
    for line in found:
        assert min(line["plain_ms"], line["own_ms"]) > 0
        assert line["low"] <= line["overhead"] <= line["high"]
        assert set(line["shares"]) == set(CATEGORIES)
    assert found[0]["shares"]["exchange"] > 0


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_a_worker_that_fails_is_told():
    with pytest.raises(RuntimeError, match="no such transport"):
        step_overhead.measure(["SSP"], 1, transport="no such transport")


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        step_overhead.main(["--only", "walking"])
    assert "walking" in capsys.readouterr().err


def test_the_network_has_half_a_million_parameters():
    from step_contest import Training

    training = Training(batch=8)
    count = sum(parameter.numel() for parameter in training.model.parameters())
    assert count == pytest.approx(500_000, rel=0.1)
    assert statistics.fmean([training.steps()]) > 0
