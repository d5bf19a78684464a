"""Rows over tcp."""

from __future__ import annotations

import pytest

from smbox.cli.bench import tcp_rows

pytestmark = pytest.mark.shares


def test_every_verb_stands_beside_both_limits(lab):
    found = list(tcp_rows.tcp_transfers(lab))
    assert [result.case for result in found] == [
        f"{verb} {size}"
        for size in ("1 MiB", "2 MiB")
        for verb in ("get", "put", "accumulate")
        for _ in range(2)
    ]
    assert {result.limit_name.split(",")[0] for result in found} == {"bare pyzmq", "raw TCP"}
    assert [result.goal.least for result in found[:6]] == [0.75, 0.5, 0.8, 0.5, 0.9, 0.45]
    assert all(result.ratio > 0 for result in found)


def test_the_exchange_stands_beside_both_ways(lab):
    (found,) = tcp_rows.tcp_elastic(lab)
    assert found.limit_name == "bare pyzmq both ways"
    assert found.ratio > 0


def test_half_the_bytes_stand_beside_all_of_them(lab):
    (found,) = tcp_rows.tcp_narrow(lab)
    assert (found.limit_name, found.goal.least) == ("float32", 1.5)
    assert found.ratio > 0
