from __future__ import annotations

import json

import all_reduce
import pytest
from rich.console import Console

WAYS = {"SyncGroup", "RingAllReduce", "gloo"}


@pytest.mark.timeout(300)
def test_all_ways_are_measured_in_turns(program, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error:torch.distributed is initialized:UserWarning")
    words = ("--sizes", "0.01", "--ranks", "2", "--rounds", "2", "--json")
    rows = json.loads(program(all_reduce.__file__, *words))
    assert {row["way"] for row in rows} == WAYS
    for row in rows:
        assert (row["ranks"], row["mib"]) == (2, 0.01)
        assert 0 < row["best_ms"] <= row["median_ms"] <= row["worst_ms"]


def test_a_round_is_as_slow_as_its_slowest_rank():
    skipped = [9.0] * all_reduce.SKIPPED
    times = [[*skipped, 0.001, 0.004, 0.002], [*skipped, 0.003, 0.001, 0.002]]
    row = all_reduce._row("gloo", times, 2, 1.0)
    assert (row["best_ms"], row["median_ms"], row["worst_ms"]) == (2.0, 3.0, 4.0)


def test_the_table_compares_with_gloo():
    times = {"best_ms": 1.0, "worst_ms": 9.0, "ranks": 2, "mib": 16.0}
    rows = [
        {"way": "SyncGroup", "median_ms": 2.0, **times},
        {"way": "gloo", "median_ms": 5.0, **times},
    ]
    console = Console(width=120)
    with console.capture() as shown:
        console.print(all_reduce.table(rows))
    assert "2.50x" in shown.get()
    assert "1.00x" in shown.get()
