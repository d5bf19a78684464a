"""Rows over shared memory."""

from __future__ import annotations

import pytest

from smbox.cli.bench import local_rows
from smbox.cli.bench.lab import ones
from smbox.cli.bench.measure import Timing

pytestmark = pytest.mark.shares


def test_get_has_a_result_for_each_size(lab):
    found = list(local_rows.local_get(lab))
    assert [result.case for result in found] == ["4 KiB", "1 MiB"]
    assert all(result.ratio > 0 for result in found)


def test_changes_are_held_to_the_goals_of_their_verbs(lab):
    found = list(local_rows.local_changes(lab))
    assert [result.case.split()[0] for result in found] == ["put", "accumulate", "elastic"]
    for verb, result in zip(local_rows.VERBS, found, strict=True):
        assert result.goal.least == verb.locked
        assert result.ratio > 0


def test_unlocked_changes_have_goals_of_their_own(lab):
    found = list(local_rows.local_unlocked(lab))
    assert [result.goal.least for result in found] == [0.95, 0.9, 0.8]


def test_small_calls_are_held_to_microseconds(lab):
    found = list(local_rows.local_small(lab))
    assert [result.unit for result in found] == ["us"] * 4
    assert [result.goal.most for result in found] == [2.0, 3.0, 3.0, 3.5]


def test_every_verb_does_what_it_is_named_for(lab):
    with lab.region(lab.local, 4096) as region:
        put, accumulate, elastic = local_rows.VERBS
        put.call(region, ones(4096))
        accumulate.call(region, ones(4096))
        assert region.get()[0] == 2.0
        elastic.call(region, ones(4096))
        assert region.get()[0] == 1.75


def test_a_rate_is_bytes_by_seconds():
    timings = {"smbox": Timing(2.0, 1.0, ()), "limit": Timing(1.0, 1.0, ())}
    result = local_rows.rate_result("r", "c", 10**9, timings, 0.9, "np.copyto")
    assert (result.figure, result.limit, result.ratio) == (0.5, 1.0, 0.5)
    assert (result.cpu_s_per_gb, result.is_met) == (1.0, False)
