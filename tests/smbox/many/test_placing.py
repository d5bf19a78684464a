from __future__ import annotations

import enum
from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given, strategies

from smbox.cli import layouts
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


class Name(str, enum.Enum):  # noqa: UP042 - str() of its names is another text
    """Names, of which ``str`` and f-strings make other texts."""

    ONE = "alpha"
    TWO = "delta"


@pytest.mark.parametrize("name", Name)
def test_a_name_is_its_characters(box, name):
    """The node was that of "Name.ONE", so two nodes had a counter "alpha"."""
    box.counter(name).add(2)
    assert box.counter(name.value).value == 2
    assert box.create(name, 3).address == box.attach(name.value).address
    box.free(name.value)
    made = box.create(name, 12, "float32", layout="striped")
    assert box.attach(name.value).parts == made.parts
    assert layouts.find_orphans(box) == []


@pytest.mark.parametrize("use", ["attach", "counter"])
def test_a_name_of_another_type_is_refused(box, use):
    with pytest.raises(TypeError, match="not int"):
        getattr(box, use)(7)


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
