from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from lab import spec
from server_or_ring.compute import MEASURED
from server_or_ring.rows import Row, grid, predicted

from smbox_torch.planning.methods import METHODS

SECONDS = {"resnet50": 4.0, "alexnet": 0.5, "vgg16": 6.0}


def test_the_grid_has_each_model_way_and_number_of_workers_once():
    rows = list(grid(SECONDS))
    assert len({(row.model, row.way, row.workers) for row in rows}) == len(rows) == 63
    assert len({row.file_name for row in rows}) == 63
    assert all(row.compute_s == SECONDS[row.model] for row in rows)


def test_an_interrupted_grid_has_all_ways_of_what_it_has():
    rows = list(grid(SECONDS))
    assert [row.model for row in rows[::21]] == list(MEASURED)
    assert MEASURED[-1] == "vgg16"  # the largest
    for count in range(7, 64, 7):
        assert set(Counter(row.way for row in rows[:count]).values()) == {count // 7}


def test_a_row_comes_back_from_json_and_every_field_changes_its_file():
    row = Row("vgg16", "easgd", 4, compute_s=2.0)
    assert Row.from_json(row.as_json()) == row
    others = [replace(row, scale=4.0), replace(row, compute_s=2.1), replace(row, nodes=3)]
    assert len({each.file_name for each in [row, *others]}) == 4


def test_model_and_computation_are_scaled_and_the_link_is_not():
    row = Row("even", "easgd", 4, scale=4.0, compute_s=2.0, elements=400)
    assert row.wait_s == 0.5
    assert "rate_mbit = 1000.0" in row.laboratory(1600.0)
    assert sum(size for layer in row.layers() for size in layer.sizes) == 400


@pytest.mark.parametrize(
    ("way", "nodes", "hosts", "each"),
    [("server-sync", 1, 6, 1), ("hybrid", 1, 3, 2), ("easgd-striped", 2, 6, 1)],
)
def test_workers_and_nodes_have_hosts_of_their_own(way: str, nodes: int, hosts: int, each: int):
    described = spec.read(Row("vgg16", way, 6).laboratory(69e6).encode())
    assert sum(bool(host.memory) for host in described.hosts) == nodes
    assert [host.workers for host in described.hosts if host.workers] == [each] * hosts
    assert not any(host.memory and host.workers for host in described.hosts)
    assert {host.rate_mbit for host in described.hosts} == {1000.0}


def test_ways_with_a_period_are_timed_for_one():
    timed = {way: Row("vgg16", way, 6, period=7, iterations=3).timed for way in METHODS}
    assert {way for way, count in timed.items() if count == 7} == {
        "hybrid",
        "easgd",
        "easgd-striped",
    }
    assert set(timed.values()) == {3, 7}


def test_the_planner_is_asked_for_the_whole_model():
    row = Row("even", "ring", 2, scale=8.0, compute_s=1.0, elements=25_000_000)
    assert predicted(row, row.elements).worker_out == 100e6
