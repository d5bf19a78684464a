from __future__ import annotations

import json

import pytest
import striped_nodes
from lab import needs

LACK = needs.missing()


@pytest.mark.skipif(bool(LACK), reason=f"there can be no laboratory: {LACK}")
@pytest.mark.timeout(200)
def test_two_nodes_carry_more_than_the_link_of_one(program):
    words = ("--nodes", "1,2", "--clients", "2", "--rate-mbit", "60", "--mib", "4", "--json")
    short = ("--seconds", "1", "--repeats", "1")
    one, two = json.loads(program(striped_nodes.__file__, *words, *short, timeout_s=180.0))
    for verb in striped_nodes.VERBS:
        assert 0.75 * 7.5 < one[verb] < 1.25 * 7.5  # 60 Mbit/s are 7.5 MB/s
        assert two[f"{verb}_ratio"] > 1.2  # on a busy host less than 2; one link gives 1


def test_the_median_of_the_repeats_counts_and_ratios_are_to_the_first():
    runs = [
        {"nodes": nodes, "put": put * nodes, "get": 10.0 * nodes}
        for put in (1.0, 9.0, 2.0)
        for nodes in (1, 2)
    ]
    one, two = striped_nodes.rows(runs)
    assert (one["put"], two["put"], two["put_ratio"], two["get_ratio"]) == (2.0, 4.0, 2.0, 2.0)
