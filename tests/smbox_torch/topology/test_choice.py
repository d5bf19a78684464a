"""The choice as a pure function of links that are made up here."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox_torch.topology import Link, Links, choose
from smbox_torch.topology.prediction import mean_s, move_s

MB = 1_000_000
FAST, SLOW = 250.0 * MB, 12.5 * MB  # 2 Gbit/s, 100 Mbit/s
LOCAL = Link(1e-6, 4e9, 4e9, is_local=True)


def links_of(
    islands: list[int], *, fast: float = FAST, slow: float = SLOW, noise=None
) -> Links:
    """One worker and one memory node on each host; islands of so many hosts."""
    home = [number for number, size in enumerate(islands) for _ in range(size)]
    draw = random.Random(noise)

    def rate(a: int, b: int) -> float:
        exact = fast if home[a] == home[b] else slow
        return exact if noise is None else exact * draw.uniform(0.7, 1.0)

    ranks = range(len(home))
    rows = [
        tuple(LOCAL if a == b else Link(2e-4, rate(a, b), rate(a, b)) for b in ranks)
        for a in ranks
    ]
    return Links(tuple(rows), tuple(ranks), tuple(ranks))


def members(topology) -> list[set[int]]:
    return [set(group.ranks) for group in topology.groups]


def chosen(links: Links, **settings):
    return choose(links, **{"nbytes": 4 * MB, "period": 10} | settings)


@pytest.mark.parametrize("noise", [None, 1, 2, 3])
@pytest.mark.parametrize("islands", [[2, 2], [3, 1], [1, 3], [2, 2, 2], [3, 2], [8, 8]])
def test_islands_become_groups(islands: list[int], noise):
    topology = chosen(links_of(islands, noise=noise))
    firsts = np.cumsum([0, *islands])
    wanted = [set(range(a, b)) for a, b in pairwise(firsts)]
    assert members(topology) == wanted
    assert topology.gap > 5.0
    for group in topology.groups:  # sums stay in the island
        assert group.node in group.ranks if len(group.ranks) > 1 else group.node is None
    assert [group.root for group in topology.groups] == list(topology.roots)


def test_a_given_center_stays_and_is_predicted():
    links = links_of([2, 2])
    free = chosen(links)
    for node in links.nodes:
        topology = chosen(links, center=node)
        assert topology.center == node
        assert members(topology) == members(free)
        assert topology.chosen.exchange_s >= free.chosen.exchange_s
    with pytest.raises(ConfigError, match="center"):
        chosen(links, center=4)


def test_what_is_predicted_of_islands_is_less_than_of_one_group():
    topology = chosen(links_of([2, 2]))
    hosts, islands, flat = topology.cuts
    assert [len(cut.groups) for cut in topology.cuts] == [4, 2, 1]
    assert islands == topology.chosen
    # 4 MB: over a fast link put and get, and every tenth step once over the slow link and back.
    assert islands.mean_s == pytest.approx(2 * 0.016, rel=0.1)
    assert islands.exchange_s == pytest.approx(0.32 + 2 * 0.016, rel=0.1)
    assert islands.step_s == pytest.approx(0.067, rel=0.1)
    assert flat.mean_s >= 2 * 0.32
    assert flat.step_s > 5 * islands.step_s
    assert hosts.mean_s == 0.0


@pytest.mark.parametrize("noise", [None, 4, 5])
@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_without_a_gap_each_host_is_a_group(workers: int, noise):
    topology = chosen(links_of([workers], noise=noise))
    assert members(topology) == [{rank} for rank in range(workers)]
    assert topology.gap == 1.0
    assert {group.node for group in topology.groups} == {None}


def test_groups_that_are_predicted_to_be_slower_than_one_are_dropped():
    """One host four times farther, exchanged with in every step: nothing is saved."""
    links = links_of([1, 4], slow=FAST / 4)
    topology = chosen(links, period=1)
    assert members(topology) == [{0, 1, 2, 3, 4}]
    assert "one group of all" in topology.reason
    assert members(chosen(links, period=10)) == [{0}, {1, 2, 3, 4}]


def test_no_choice_of_groups_is_predicted_to_be_slower_than_one_group():
    for seed in range(100):
        draw = random.Random(seed)
        islands = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
        links = links_of(islands, slow=FAST / 10 ** draw.uniform(0.0, 2.0), noise=seed)
        for period in (1, 4, 10):
            topology = chosen(links, period=period)
            assert topology.chosen.step_s <= topology.cuts[-1].step_s, seed
            every = sorted(rank for group in topology.groups for rank in group.ranks)
            assert every == list(range(sum(islands)))


def test_one_slow_worker_is_left_alone():
    fast = links_of([4])
    slow = tuple(Link(2e-4, SLOW / 2, SLOW / 2) for _ in range(3))
    rows = [(*row[:3], slow[0]) for row in fast.rows[:3]] + [(*slow, LOCAL)]
    topology = chosen(Links(tuple(rows), fast.nodes, fast.hosts))
    assert members(topology) == [{0, 1, 2}, {3}]


def hosts_of_two(*links: Link) -> Links:
    """Two workers on each host, and one node, with the id 7, on the first."""
    rows = tuple((link,) for link in links)
    return Links(rows, (7,), tuple(rank // 2 for rank in range(len(rows))))


FASTER = Link(1e-7, 9e9, 9e9, is_local=True)
NEAR, FAR = Link(2e-4, FAST, FAST), Link(2e-4, SLOW, SLOW)


def test_workers_of_a_host_stay_together_and_are_led_by_their_lowest_rank():
    topology = chosen(hosts_of_two(LOCAL, FASTER, FAR, FAR, FAR, FAR), center=7)
    assert [group.ranks for group in topology.groups] == [(0, 1), (2, 3), (4, 5)]
    assert topology.center == 7
    assert {group.node for group in topology.groups} == {None}


def test_hosts_are_joined_whole():
    topology = chosen(hosts_of_two(LOCAL, FASTER, NEAR, NEAR, FAR, FAR))
    assert [group.ranks for group in topology.groups] == [(1, 0, 2, 3), (4, 5)]
    assert [group.node for group in topology.groups] == [7, None]


def test_a_group_over_hosts_is_led_by_the_worker_nearest_to_the_center():
    links = links_of([3, 3])
    rows = [list(row) for row in links.rows]
    for rank in range(3):  # the center comes to one of these hosts: their nodes are fastest
        rows[4][rank] = Link(2e-4, 2 * SLOW, 2 * SLOW)
    topology = chosen(Links(tuple(map(tuple, rows)), links.nodes, links.hosts))
    assert members(topology) == [{0, 1, 2}, {3, 4, 5}]
    assert topology.center in {0, 1, 2}
    assert topology.roots[1] == 4
    assert topology.roots[0] == topology.center  # that worker maps the center's memory
    assert topology.groups[1].ranks == (4, 3, 5)


def test_workers_that_only_meet_over_a_slow_link_form_no_group():
    """Node 0 is in one island; those of the other island have no place near to meet."""
    far, near = Link(2e-4, SLOW, SLOW), Link(2e-4, FAST, FAST)
    topology = chosen(Links(((LOCAL,), (near,), (far,), (far,)), (0,), (0, 1, 2, 3)))
    assert members(topology) == [{0, 1}, {2}, {3}]
    assert topology.groups[0].node == 0


def test_hosts_that_are_near_to_a_third_alone_form_no_group_of_three():
    """A mean waits for the slowest pair, which meets at neither of the two nodes."""
    near, far = Link(2e-4, FAST, FAST), Link(2e-4, SLOW, SLOW)
    rows = ((near, far), (near, near), (far, near))
    assert members(chosen(Links(rows, (0, 1), (0, 1, 2)))) == [{0, 1}, {2}]


def test_ties_are_broken_by_rank_and_node_whatever_the_time():
    first, second = (chosen(links_of([4, 4])) for _ in range(2))
    assert first == second
    assert first.groups[0].ranks[0] == 0
    assert first.center == 0


def test_all_workers_read_the_same_from_the_same_array():
    links = links_of([2, 3], noise=9)
    again = Links.from_array(links.as_array(), links.nodes)
    assert again == links
    assert chosen(again) == chosen(links)
    assert str(chosen(again)) == str(chosen(links))


def test_workers_of_a_host_share_its_link_and_a_root_does_not_get_its_own_move():
    slow, fast = Link(0.0, 100.0, 50.0), Link(0.0, 1000.0, 500.0)
    links = Links(((slow,), (slow,), (fast,)), (7,), (0, 0, 1))
    assert mean_s(links, (0, 1, 2), 0, 100.0) == pytest.approx(2 * 1.0 + 2 * 2.0)
    assert move_s(links, (0, 1, 2), 0, 100.0) == pytest.approx(1.0 + 2.0)


def test_one_host_is_one_group_for_one_reason():
    topology = chosen(hosts_of_two(LOCAL, LOCAL))
    assert members(topology) == [{0, 1}]
    assert topology.reason == "one group: all workers share the memory of one host"


def test_a_run_of_many_hosts_is_divided_in_seconds():
    began_s = time.process_time()
    topology = chosen(links_of([32, 32, 32], noise=1))
    assert [len(group.ranks) for group in topology.groups] == [32, 32, 32]
    assert time.process_time() - began_s < 10.0


def test_the_table_shows_links_groups_and_predictions():
    shown = str(chosen(links_of([2, 2])))
    assert "250.0 / 250.0" in shown
    assert "{0,1}@0 {2,3}@2" in shown
    assert "0.20, 12.5 / 12.5" in shown
    assert shown.count("4000 / 4000*") == 4
    assert [line.strip()[0] for line in shown.splitlines() if "@0 {2,3}" in line] == [">"]
    assert shown.count(">") == 1
    assert "times as long" in shown
