from __future__ import annotations

import inspect

import pytest
import torch
from catalog import BASELINES, ROWS, SCENARIOS, TABLES, baseline_of
from rows import Row, Settings
from trainers import KINDS, moving_rate_of, own_momentum_of, period_of, schedule

import smbox_torch

ALGORITHMS = {
    name
    for name in smbox_torch.__all__
    if inspect.isclass(found := getattr(smbox_torch, name))
    and issubclass(found, torch.optim.Optimizer)
    and name != "BoxOptimizer"
}


def test_every_exported_algorithm_has_a_row_with_its_defaults():
    plain = {KINDS[row.kind].algorithm for row in ROWS.values() if not row.options}
    demanded = {KINDS[ROWS["hogwild-pp"].kind].algorithm}  # clusters has no default
    named = {kind.__name__ for kind in plain | demanded if kind is not None}
    assert ALGORITHMS
    assert ALGORITHMS - named == set()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_can_be_run(row: Row):
    assert row.kind in KINDS
    assert row.table in TABLES
    assert row.workers % row.nodes == 0
    assert row.lr > 0
    algorithm = KINDS[row.kind].algorithm
    if algorithm is not None:
        inspect.signature(algorithm).bind_partial(**row.options)


def test_rows_have_names_and_files_of_their_own():
    assert len({Settings(row, 0).file_name for row in ROWS.values()}) == len(ROWS)
    assert all(row.name == name for name, row in ROWS.items())


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_baseline_is_one_process_with_as_many_samples(row: Row):
    baseline = ROWS[baseline_of(row)]
    assert baseline.workers == 1
    assert (baseline.part, baseline.network) == (row.part, row.network)
    assert set(BASELINES) == set(TABLES)


def test_rows_without_momentum_are_compared_with_one_process_without():
    assert baseline_of(ROWS["easgd-plain-4"]) == "one-plain"
    assert baseline_of(ROWS["eamsgd-4"]) == "one"  # it has its own
    assert baseline_of(ROWS["easgd-4"]) == "one"


def test_periods_workers_and_scenarios_of_the_comparison_are_there():
    for name in ("easgd-plain", "easgd", "eamsgd", "downpour-plain", "downpour"):
        for period in (1, 4, 16, 64):
            assert period_of(ROWS[f"{name}-{period}"]) == period
        for count in (2, 8):
            row = ROWS[f"{name}-4-of-{count}"]
            assert (row.workers, period_of(row)) == (count, 4)
    seen = {(row.kind, row.scenario) for row in ROWS.values() if row.table == SCENARIOS}
    wanted = {
        (kind, scenario)
        for kind in ("sync", "easgd", "ssp", "hybrid")
        for scenario in ("none", "slow", "killed", "joining")
    }
    assert wanted - seen == {("sync", "joining")}


def test_settings_of_a_row_are_those_of_its_class():
    assert (moving_rate_of(ROWS["easgd"]), period_of(ROWS["easgd"])) == (0.45, 1)
    assert moving_rate_of(ROWS["hybrid"]) == 0.45
    assert moving_rate_of(ROWS["seasgd-crowd"]) == 0.2
    assert moving_rate_of(ROWS["downpour"]) is None
    assert period_of(ROWS["sync"]) == 1
    assert period_of(ROWS["one"]) is None
    assert period_of(ROWS["hogwild"]) is None
    assert own_momentum_of(ROWS["eamsgd-4"]) == 0.9
    assert own_momentum_of(ROWS["easgd"]) is None


def test_the_learning_rate_rises_and_falls_to_zero():
    rates = [schedule(0.4, step / 100) for step in range(101)]
    assert rates[0] == 0.0
    assert max(rates) == rates[5] == pytest.approx(0.4)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] == pytest.approx(0.0)
