from __future__ import annotations

import argparse
import json

import publishing
import pytest
from rich.console import Console

WAYS = {
    "np.copyto",
    "pull()",
    "pull(into=module)",
    "torch.save, torch.load(mmap)",
    "gloo broadcast",
}
TOLD = argparse.Namespace(readers=2, mib=16.0, transport="auto")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_all_ways_are_measured_in_turns(transport, program):
    words = ("--mib", "1", "--readers", "2", "--rounds", "2", "--json")
    rows = json.loads(program(publishing.__file__, *words, "--transport", transport))
    assert {each["way"] for each in rows} - {"redis"} == WAYS
    for each in rows:
        assert (each["readers"], each["mib"], each["transport"]) == (2, 1.0, transport)
        assert 0 < each["best_ms"] <= each["median_ms"] <= each["worst_ms"]


def test_a_round_lasts_from_the_first_start_to_the_last_readers_end():
    skipped = [(0.0, 9.0)] * publishing.SKIPPED
    times = [
        [*skipped, (1.001, 1.900), (2.000, 2.001)],
        [*skipped, (1.000, 1.004), (2.000, 2.002)],
        [*skipped, (1.002, 1.003), (2.001, 2.008)],
    ]
    found = publishing.row("pull()", times, TOLD)
    assert found["best_ms"] == pytest.approx(4.0)
    assert found["median_ms"] == pytest.approx(6.0)
    assert found["worst_ms"] == pytest.approx(8.0)


def test_the_table_compares_with_the_limit():
    common = {"best_ms": 1.0, "worst_ms": 9.0, "readers": 2, "mib": 16.0, "transport": "shm"}
    rows = [
        {"way": publishing.LIMIT, "median_ms": 2.0, **common},
        {"way": "pull()", "median_ms": 2.5, **common},
    ]
    console = Console(width=120)
    with console.capture() as shown:
        console.print(publishing.table(rows))
    assert "0.80" in shown.get()
    assert "1.00" in shown.get()
