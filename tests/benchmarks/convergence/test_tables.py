from __future__ import annotations

import tables


def test_a_mean_is_over_the_runs(made):
    runs = [made("one", 0, 0.5), made("one", 1, 0.7)]
    assert tables.mean(runs, tables.accuracy) == 60.0


def test_part_runs_are_marked(made):
    runs = {"one": [made("one", 0, 0.5)], "easgd-16": [made("easgd-16", 0, 0.5)]}
    shown = tables.accuracy_table(runs)
    assert "| one process | 50.0 %" in shown
    assert "| EASGD x 16, rate 0.2, tcp ¹ | 50.0 %" in shown


def test_ways_that_exchange_nothing_have_no_line(made):
    runs = {"one": [made("one", 0, 0.5)], "ssp": [made("ssp", 0, 0.5)]}
    assert "one process" not in tables.exchange_table(runs)
    assert "SSP" in tables.exchange_table(runs)
    assert "one process" not in tables.staleness_table(runs)


def test_a_histogram_is_of_all_seeds(made):
    counts = ({"0": 3}, {"0": 1, "3": 3}, {"6": 1})
    runs = [made("ssp", seed, 0.5, staleness=seen) for seed, seen in enumerate(counts)]
    shown = tables.staleness_table({"ssp": runs})
    assert shown.splitlines()[-1].endswith("| 50% | 0% | 38% | 12% | 0% | 6 |")
