"""Rows of many clients."""

from __future__ import annotations

import mmap
import os

import pytest

from smbox.cli.bench import crowd_rows

pytestmark = pytest.mark.shares


def test_rates_of_several_clients_are_sums(lab, monkeypatch):
    class Clients:
        def rate(self, seconds: float, count: int) -> float:
            return count * 1e9

    assert crowd_rows._rates(lab, Clients(), (1, 4)) == {1: 1.0, 4: 4.0}


def test_local_clients_share_a_region(lab, monkeypatch):
    monkeypatch.setattr(crowd_rows, "LOCAL_CLIENTS", 2)
    crowd, small = crowd_rows.local_crowd(lab)
    assert crowd.limit_name == "one client"
    assert crowd.ratio > 0
    assert (small.unit, small.goal.most) == ("ms", 20.0)


def test_clients_over_tcp_stand_beside_the_best_of_four(lab, monkeypatch):
    monkeypatch.setattr(crowd_rows, "TCP_CLIENTS", 2)
    monkeypatch.setattr(crowd_rows, "FEW_CLIENTS", (1,))
    monkeypatch.setattr(crowd_rows, "TCP_NBYTES", 1 << 20)
    found = list(crowd_rows.tcp_crowd(lab))
    assert [result.case for result in found] == ["2 clients get 1 MiB", "2 clients put 1 MiB"]
    assert all(result.ratio > 0 for result in found)


def test_the_nodes_own_memory_is_watched(lab, monkeypatch):
    monkeypatch.setattr(crowd_rows, "TCP_CLIENTS", 2)
    found = list(crowd_rows.node_growth(lab))
    assert [result.case.split(" 2 MiB")[0] for result in found] == [
        "2 clients put",
        "2 clients stop in a get of",
        "2 clients stop in an elastic of",
    ]
    for result in found:
        assert (result.unit, result.goal.most) == ("MiB", 32.0)
        assert result.limit > 1


def test_a_process_has_memory_of_its_own():
    before = crowd_rows.anonymous_nbytes(os.getpid())
    held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE)  # a heap may have as much left over
    held.write(os.urandom(1) * len(held))
    assert crowd_rows.anonymous_nbytes(os.getpid()) > before + (32 << 20)
    held.close()


def test_the_node_is_looked_at_after_every_verb(lab):
    (found,) = crowd_rows.node_memory(lab)
    assert "4 clients" in found.case
    assert 1 < found.figure < 1000
