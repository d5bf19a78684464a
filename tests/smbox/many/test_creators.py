"""Striped regions: creations that fail, and what other clients do before a head is created."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smbox import directory
from smbox.errors import (
    ConfigError,
    OutOfMemoryError,
    RegionExistsError,
    RegionFreedError,
    RequestTimeoutError,
)
from smbox.many import creating as striped
from smbox.paths import creating
from smbox.paths.control import ControlPath
from smbox.testing import interrupts

X = np.arange(12, dtype=np.float32)
TRIES_MAX = 500


@pytest.fixture
def before_head(monkeypatch):
    """Call a function before each head is created, but not for heads that it creates."""
    create = creating.create

    def prepare(act):
        def created(paths, request, *arguments):
            if "#" not in request.name:
                with monkeypatch.context() as patch:
                    patch.setattr(creating, "create", create)
                    act()
            return create(paths, request, *arguments)

        monkeypatch.setattr(creating, "create", created)

    return prepare


def names(box):
    return sorted(info.name.partition("#")[0] for info in box.regions())


@pytest.mark.parametrize("error", [OutOfMemoryError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])  # the third is the last part, the fourth the head
def test_a_create_that_fails_anywhere_leaves_nothing(box, monkeypatch, nth, error):
    create, number = creating.create, itertools.count(1)

    def failing(*arguments):
        if next(number) == nth:
            raise error
        return create(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(creating, "create", failing)
        with pytest.raises(type(error)):
            box.create("w", init=X, layout="striped")
    assert box.regions() == []


def test_an_interrupt_at_any_line_of_a_create_leaves_no_part(box):
    """Between a part's creation and its entry in the list, it left that part."""
    for nth in itertools.count(1):
        interrupts.interrupted(
            nth, lambda: box.create("w", init=X, layout="striped"), (striped.__file__,)
        )
        found = names(box)
        assert found in ([], ["w"] * 4)
        if found:
            break
    assert nth > 20


@pytest.mark.parametrize("nth", [3, 4])
def test_the_error_is_the_first_one_if_parts_cannot_be_freed_either(team, monkeypatch, nth):
    create, number = creating.create, itertools.count(1)

    def failing(*arguments):
        if next(number) == nth:
            team.nodes[0].is_down = True
            raise OutOfMemoryError("full")
        return create(*arguments)

    monkeypatch.setattr(creating, "create", failing)
    with pytest.raises(OutOfMemoryError):
        team.box(timeout_s=0.3).create(team.name_on(1), init=X, layout="striped")


@pytest.mark.parametrize(("layout", "regions"), [("striped", 4), ("single", 1)])
def test_a_creation_that_fails_leaves_the_region_of_another_client(
    box, team, before_head, layout, regions
):
    def other_is_faster():
        team.box().create("w", init=-X, layout=layout)
        raise RequestTimeoutError("no reply")

    before_head(other_is_faster)
    with pytest.raises(RequestTimeoutError):
        box.create("w", init=X, layout="striped")
    assert team.box().attach("w").get().tolist() == (-X).tolist()
    assert names(box) == ["w"] * regions


def test_a_creation_whose_part_was_freed_as_an_orphan_leaves_nothing(box, team, before_head):
    before_head(lambda: team.alone(1).free(team.alone(1).regions()[0]))
    with pytest.raises(RegionFreedError):
        box.create("w", init=X, layout="striped")
    assert names(box) == []


def test_a_creator_that_always_loses_against_a_region_that_is_freed_ends(box, before_head):
    tries = []

    def other_is_faster():
        tries.append(1)
        assert len(tries) < TRIES_MAX
        raise RegionExistsError("a region of this name exists")

    before_head(other_is_faster)
    with pytest.raises(RegionExistsError):
        box.create("w", init=X, layout="striped", exist_ok=True, timeout_s=0.02)
    assert names(box) == []


@pytest.fixture
def freed_before(team, monkeypatch):
    """Let another client free the region "w" before the next call of a function."""

    def prepare(owner, name):
        function = getattr(owner, name)

        def called(*arguments):
            monkeypatch.setattr(owner, name, function)
            team.box().free("w")
            return function(*arguments)

        monkeypatch.setattr(owner, name, called)

    return prepare


@pytest.mark.parametrize(
    ("owner", "name"), [(directory, "head_of"), (ControlPath, "locate")], ids=["head", "parts"]
)
def test_a_region_that_is_freed_while_it_is_opened_is_created_again(
    box, freed_before, owner, name
):
    box.create("w", init=-X, layout="striped")
    freed_before(owner, name)
    found = box.create("w", init=X, layout="striped", exist_ok=True)
    assert found.get().tolist() == X.tolist()


def test_a_region_that_is_freed_as_soon_as_it_is_created_is_returned(box, freed_before):
    freed_before(ControlPath, "locate")
    region = box.create("w", init=X, layout="striped")
    assert names(box) == []
    with pytest.raises(RegionFreedError):
        region.get()


def test_all_states_of_an_optimizer_are_freed_in_the_time_of_one_call(box, monkeypatch):
    region = box.create("w", init=X, layout="striped")
    optimizer, given_s, end = box.optimizer(region, "adam", lr=0.1), [], ControlPath.end_free

    def noted(control, call, timeout_s):
        given_s.append(timeout_s)
        return end(control, call, timeout_s)

    monkeypatch.setattr(ControlPath, "end_free", noted)
    optimizer.free()
    assert names(box) == ["w"] * 4
    assert len(given_s) == 6
    assert all(later < earlier for earlier, later in itertools.pairwise(given_s))


def test_a_region_whose_head_is_on_an_unknown_node_is_not_freed(box, team):
    """Its only part was on a known node, and the head's id was looked up without a check."""
    region = box.create(team.name_on(5), init=X[:1], layout="striped")
    with pytest.raises(ConfigError, match="connect to all nodes") as caught:
        team.box(order=(0, 1)).free(region)
    assert caught.value.facts["node"] == 5
    assert region.get().tolist() == [0]
