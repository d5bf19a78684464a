"""Rows of small messages."""

from __future__ import annotations

import pytest

from smbox.cli.bench import small_rows

pytestmark = pytest.mark.shares


def test_round_trips_stand_beside_a_ping_pong(lab):
    found = list(small_rows.tcp_small(lab))
    assert [result.case for result in found] == ["put 4 KiB p50", "get 4 KiB p50"]
    assert all(result.goal.most == 1.5 and result.ratio > 0 for result in found)


def test_a_batch_stands_beside_its_parts_one_by_one(lab):
    found = list(small_rows.tcp_batch(lab))
    assert [result.case for result in found] == ["256 x put 4 KiB", "256 x accumulate 64 B"]
    assert all(result.unit == "op/s" and result.ratio > 0 for result in found)
