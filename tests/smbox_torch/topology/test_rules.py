"""The rules of the choice one by one, on links whose times are exact."""

from __future__ import annotations

import pytest

from smbox.errors import ConfigError
from smbox_torch.topology import Link, Links, Topology, choose
from smbox_torch.topology.prediction import exchange_s, mean_s, move_s

LOCAL = Link(0.0, 1e12, 1e12, is_local=True)
NEAR, FAR = Link(0.0, 2e6, 2e6), Link(0.0, 1e5, 1e5)


def chosen(rows: list[tuple[Link, ...]], hosts: tuple[int, ...], **more: int) -> Topology:
    links = Links(tuple(rows), tuple(range(len(rows[0]))), hosts)
    return choose(links, **{"nbytes": 1_000_000, "period": 1000} | more)


@pytest.mark.parametrize(("rate", "is_gap"), [(1e6, True), (1.01e6, False)])
def test_links_that_take_twice_as_long_are_of_another_kind(rate: float, is_gap: bool):
    far = Link(0.0, rate, rate)
    rows = [(LOCAL, NEAR, far), (NEAR, LOCAL, far), (far, far, LOCAL)]
    groups = [group.ranks for group in chosen(rows, (0, 1, 2)).groups]
    assert groups == ([(0, 1), (2,)] if is_gap else [(0,), (1,), (2,)])


def test_two_hosts_are_as_far_apart_as_their_slowest_workers():
    rows = [(LOCAL,), (LOCAL,), (NEAR,), (FAR,), (FAR,), (FAR,)]
    groups = [group.ranks for group in chosen(rows, (0, 0, 1, 1, 2, 2)).groups]
    assert groups == [(0, 1), (2, 3), (4, 5)]


def test_the_ranks_behind_the_root_ascend():
    rows = [(LOCAL,), (NEAR,), (LOCAL,), (NEAR,), (FAR,)]
    groups = [group.ranks for group in chosen(rows, (0, 1, 0, 1, 2)).groups]
    assert groups == [(0, 1, 2, 3), (4,)]


def test_the_root_is_the_one_whose_slower_way_to_the_center_is_fastest():
    odd, even = Link(0.0, 4e5, 1e4), Link(0.0, 2e5, 2e5)
    rows = [(LOCAL, FAR, FAR), (odd, LOCAL, NEAR), (even, NEAR, LOCAL)]
    assert [group.ranks for group in chosen(rows, (0, 1, 2), center=0).groups] == [(0,), (2, 1)]


def test_the_slowest_group_is_what_a_choice_costs():
    rows = [(LOCAL, FAR, FAR), (FAR, LOCAL, NEAR), (FAR, NEAR, LOCAL)]
    topology = chosen(rows, (0, 1, 2))
    cut, links, nbytes = topology.chosen, topology.links, topology.nbytes
    (alone,), two = (group.ranks for group in cut.groups)
    node = links.nodes.index(cut.groups[1].node)
    move = move_s(links, two, node, nbytes)
    assert cut.mean_s == mean_s(links, two, node, nbytes) > 0
    assert cut.exchange_s == exchange_s(links, (alone, two[0]), cut.center, nbytes) + move
    assert cut.step_s == cut.mean_s + cut.exchange_s / 1000


def test_a_transfer_takes_its_latency_and_its_bytes_at_the_rate_of_its_way():
    link = Link(1.0, 100.0, 50.0)
    links = Links(((link,), (link,), (link,)), (7,), (0, 0, 1), ("a", "b"))
    assert (link.put_s(100), link.get_s(100)) == (2.0, 3.0)
    assert links.distances(100).tolist() == [[0, 0, 5], [0, 0, 5], [5, 5, 0]]
    assert exchange_s(links, (2,), 0, 100) == 3.0
    assert move_s(links, (0, 1), 0, 100) == 0.0  # they share memory
    assert [links.name_of(rank) for rank in range(3)] == ["a", "a", "b"]
    with pytest.raises(ConfigError, match="names"):
        Links(links.rows, (7,), (0, 0, 2), ("a", "b"))


def test_the_best_link_of_any_worker_shows_what_the_node_can_take():
    slow, fast = Link(0.0, 10.0, 10.0), Link(0.0, 100.0, 100.0)
    links = Links(((slow,), (slow,), (fast,)), (0,), (0, 1, 2))
    assert mean_s(links, (0, 1), 0, 100) == 20.0  # both at once
