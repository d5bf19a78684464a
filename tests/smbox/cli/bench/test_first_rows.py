"""Rows of a fresh process."""

from __future__ import annotations

import pytest

from smbox.cli.bench import first_rows
from smbox.cli.bench.first_calls import slowest_s

pytestmark = pytest.mark.shares


def test_the_slowest_call_counts_and_the_first_one_too(monkeypatch):
    ticks = iter([0.0, 3.0, 10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert slowest_s(lambda: None, 2) == 3.0


def test_each_verb_on_each_path_and_the_import(lab):
    found = list(first_rows.first_calls(lab))
    verbs = ("get", "put", "accumulate", "elastic")
    cases = [f"{path} slowest {verb} of 300" for path in ("shm", "tcp") for verb in verbs]
    assert [result.case for result in found] == [*cases, "import smbox"]
    assert all(result.goal.most == 20 for result in found[:-1])
    assert 0 < found[-1].figure < 60
