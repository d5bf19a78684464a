from __future__ import annotations

import tables
from catalog import ROWS


def test_a_row_shows_its_settings_mean_and_interval(made):
    results = {
        "one": [made("one", seed, 0.71) for seed in range(3)],
        "easgd": [made("easgd", seed, 0.69 + seed / 100) for seed in range(3)],
    }
    shown = tables.accuracy_table(results, [ROWS["one"], ROWS["easgd"]]).splitlines()
    assert (
        shown[2] == "| one process | 1 x 32 |  | 0.9 | 0.02 |  | 71.0 ± 0.0 |  | 3 | 20 | 16 |"
    )
    assert shown[3] == (
        "| EASGD, defaults | 4 x 8 | 1 | 0.9 | 0.02 | 0.45 (default) "
        "| 70.0 ± 2.5 | -1.0 ± 2.5 | 3 | 20 | 16 |"
    )


def test_a_row_without_runs_says_so(made):
    shown = tables.accuracy_table({}, [ROWS["easgd-16"]])
    row = (
        "| EASGD, period 16 | 4 x 8 | 16 | 0.9 | 0.02 | 0.45 (default) | not run |  | 0 |  |  |"
    )
    assert row in shown


def test_diverged_runs_are_counted(made):
    results = {"seasgd-crowd": [made("seasgd-crowd", seed, 0.1, loss=None) for seed in (0, 1)]}
    assert "| 2, 2 diverged |" in tables.accuracy_table(results, [ROWS["seasgd-crowd"]])


def test_the_time_to_an_accuracy_is_that_of_the_first_look(made):
    curve = [[0.25, 5.0, 0.3], [0.5, 10.0, 0.61], [1.0, 20.0, 0.7]]
    early = made("one", 0, 0.7, curve=curve)
    never = made("one", 1, 0.5)
    assert tables.reached_at(early) == (10.0, 25_000.0)
    assert tables.reached_at(never) is None
    shown = tables.time_table({"one": [early, never]}, [ROWS["one"], ROWS["sync"]])
    assert "| one process | 1 of 2 | 10.0 ± ? | 25.0 ± ? thousand |" in shown
    assert "| SyncGroup, defaults | not run |" in shown


def test_scenarios_are_compared_with_the_undisturbed_runs(made):
    results = {
        "sync-undisturbed": [made("sync-undisturbed", seed, 0.6) for seed in (0, 1)],
        "sync-killed": [
            made("sync-killed", seed, 0.5, error="WorkerLostError: rank 3 died", ended=0)
            for seed in (0, 1)
        ],
    }
    rows = [ROWS["sync-undisturbed"], ROWS["sync-killed"], ROWS["ssp-killed"]]
    calm, killed, missing = tables.scenario_table(results, rows).splitlines()[2:]
    assert calm.endswith("| 60.0 ± 0.0 |  | 20 | 50,000 | 4 of 4 finished |")
    assert killed.endswith("| -10.0 ± 0.0 | 20 | 50,000 | 0 of 4 finished, WorkerLostError |")
    assert "not run" in missing


def test_rows_that_exchange_nothing_have_no_line(made):
    results = {"one": [made("one", 0, 0.5)], "hybrid": [made("hybrid", 0, 0.5)]}
    shown = tables.exchange_table(results)
    assert "one process" not in shown
    assert "| HybridSGD 2 x 2, defaults | 8 | 4 | 84 | 2.25 | 25% |" in shown
    assert "|   inside the nodes | 8 | 4 | 84 |  | 25% |" in shown
    assert "one process" not in tables.staleness_table(results)


def test_a_histogram_is_of_all_seeds(made):
    counts = ({"0": 3}, {"0": 1, "3": 3}, {"6": 1})
    runs = [made("ssp", seed, 0.5, staleness=seen) for seed, seen in enumerate(counts)]
    shown = tables.staleness_table({"ssp": runs})
    assert shown.splitlines()[-1].endswith("| 50% | 0% | 38% | 12% | 0% | 6 |")
