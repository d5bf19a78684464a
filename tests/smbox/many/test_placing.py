from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given, strategies

from smbox.errors import ConfigError, RegionNotFoundError
from smbox.many.striping import cut_rows, home_of

NAMES = [f"layer.{number}.weight" for number in range(3000)]


def test_the_order_of_the_nodes_does_not_matter():
    for name in NAMES[:50]:
        assert len({home_of(name, ids) for ids in permutations([0, 1, 7, 40])}) == 1


def test_names_are_spread_evenly():
    found = Counter(home_of(name, [0, 1, 2]) for name in NAMES)
    assert set(found) == {0, 1, 2}
    assert all(900 < count < 1100 for count in found.values())


def test_another_node_takes_only_names_that_it_wins():
    before = {name: home_of(name, [0, 1, 2]) for name in NAMES}
    after = {name: home_of(name, [0, 1, 2, 3]) for name in NAMES}
    moved = [name for name in NAMES if before[name] != after[name]]
    assert {after[name] for name in moved} == {3}
    assert 600 < len(moved) < 900


def test_a_placement_never_changes_between_releases():
    assert [home_of(name, [0, 1, 2]) for name in ("center", "w", "steps", "ü")] == [0, 2, 1, 2]


@given(strategies.integers(0, 10_000), strategies.integers(1, 40))
def test_rows_are_cut_evenly_and_completely(rows, count):
    parts = cut_rows(rows, count)
    assert parts[0][0] == 0
    assert parts[-1][1] == rows
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    lengths = [limit - first for first, limit in parts]
    assert max(lengths) - min(lengths) <= 1
    assert len(parts) == max(1, min(rows, count))


@pytest.mark.parametrize(
    ("rows", "count", "wanted"),
    [(7, 3, [(0, 3), (3, 5), (5, 7)]), (2, 3, [(0, 1), (1, 2)]), (0, 3, [(0, 0)])],
)
def test_examples_of_cuts(rows, count, wanted):
    assert cut_rows(rows, count) == wanted


@pytest.mark.parametrize("name", ["a\ud800", "a\n", "\0"])
def test_a_name_that_no_region_can_have_is_refused_as_by_one_node(box, name):
    with pytest.raises(ConfigError, match="printable"):
        box.create(name, shape=3)
    with pytest.raises(RegionNotFoundError, match="printable"):
        box.attach(name, timeout_s=None)
