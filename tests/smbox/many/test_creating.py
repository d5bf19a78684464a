"""Striped regions: incomplete creation, races, and lost parts."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from memnode.registry import Registry
from smbox.cli import layouts
from smbox.errors import (
    ConnectError,
    LayoutMismatchError,
    OutOfMemoryError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
    RequestTimeoutError,
)
from smbox.many.striping import Node
from smbox.paths.control import ControlPath
from smbox.testing.contract_tools import in_threads
from smbox.wire import header
from smbox.wire.ops import Op

X = np.arange(12, dtype=np.float32)
SHORT_S = 0.2


def names(box):
    return sorted(info.name for info in box.regions())


def test_a_create_that_a_node_refuses_leaves_nothing(box, team):
    team.alone(5).create("filler", shape=(200 << 20,), dtype="uint8")
    with pytest.raises(OutOfMemoryError) as caught:
        box.create("w", shape=(400 << 20,), dtype="uint8", layout="striped")
    assert caught.value.facts["node"] == 5
    assert names(box) == ["filler"]


@pytest.mark.parametrize("contents", [{"shape": 12}, {"init": X}])
def test_a_part_whose_creation_got_no_reply_goes_once_its_node_answers(team, contents, until):
    """The node had created and published it; without contents that is one request."""
    node, box = team.nodes[5], team.box(timeout_s=SHORT_S)
    name, handle = team.name_on(0), node.hub.handler
    silent = []

    def goes_silent_once(connection, frames):
        is_create = bool(frames) and header.unpack(frames[0])[2] == Op.CREATE
        found = list(handle(connection, frames))
        if is_create and not silent:
            silent.append(name)
            node.is_down = True
            return []
        return found

    node.hub.handler = goes_silent_once
    with pytest.raises((ConnectError, RequestTimeoutError)):
        box.create(name, layout="striped", **contents)
    assert len(node.memory.regions) == 1
    node.is_down = False
    answers = []

    def is_answered() -> bool:
        with contextlib.suppress(RequestTimeoutError):  # a busy host may need longer
            answers.append(box.stats())
        return bool(answers)

    until(is_answered)
    assert answers[0]["node 5"]["regions"] == 0
    assert names(team.box()) == []


def test_parts_that_no_head_names_are_found_and_removed(box, team):
    kept = box.create("kept", init=X, layout="striped")
    box.create("w", init=X, layout="striped")
    home = box.home_of("w")
    home.free(next(info for info in home.regions() if info.name == "w"))
    assert [info.name.partition("#")[0] for info in layouts.find_orphans(box)] == [
        "w",
        "w",
        "w",
    ]
    for info in layouts.find_orphans(box):
        box.free(info)
    assert layouts.find_orphans(box) == []
    assert kept.get().tolist() == X.tolist()


def test_parts_whose_head_may_be_elsewhere_are_nobodys_orphans(box, team):
    box.create(team.name_on(5), init=X, layout="striped")
    assert layouts.find_orphans(team.box(order=(0, 1))) == []
    assert layouts.find_orphans(team.alone(0)) == []


def test_a_create_at_a_lost_node_names_it(team):
    box = team.box(timeout_s=SHORT_S)
    left = team.name_on(0)
    box.create(left, shape=12)
    team.nodes[5].is_down = True
    with pytest.raises((ConnectError, RequestTimeoutError)) as caught:
        box.create(team.name_on(0, "v"), init=X, layout="striped")
    assert caught.value.facts["node"] == 5
    assert [info.name for info in team.box(order=(0, 1)).regions()] == [left]


@pytest.fixture
def goes_silent(monkeypatch):
    """Let a node publish a region of this name, send no reply, and then drop all messages."""

    def prepare(node, name):
        publish, handle = Registry.publish, node.hub.handler

        def published(self, address, **options):
            found = publish(self, address, **options)
            node.is_down = self.locate(address).spec.name == name
            return found

        def answers(connection, frames):
            found = list(handle(connection, frames))
            return [] if node.is_down else found

        monkeypatch.setattr(Registry, "publish", published)
        monkeypatch.setattr(node.hub, "handler", answers)

    return prepare


def test_a_head_is_no_region_to_create_again_on_one_node(box, team):
    name = team.name_on(5)
    box.create(name, init=X, layout="striped")
    alone = team.alone(5)
    (found,) = (info for info in alone.regions() if info.name == name)
    with pytest.raises(LayoutMismatchError, match="striped over several nodes"):
        alone.create(name, shape=found.shape, dtype=found.dtype.name, exist_ok=True)


def test_parts_stay_for_a_head_whose_node_goes_silent(team, goes_silent):
    name = team.name_on(1)
    goes_silent(team.nodes[1], name)
    with pytest.raises(RequestTimeoutError) as caught:
        team.box(timeout_s=SHORT_S).create(name, init=X, layout="striped")
    assert caught.value.facts["node"] == 1
    team.nodes[1].is_down = False
    found = team.box().create(name, init=-X, layout="striped", exist_ok=True)
    assert found.get().tolist() == X.tolist()


def test_a_head_whose_node_was_silent_goes_with_its_parts(team, goes_silent, monkeypatch):
    name = team.name_on(1)
    goes_silent(team.nodes[1], name)
    box = team.box(timeout_s=SHORT_S)
    find, waits = ControlPath.find, []

    def back_by_then(*arguments):
        team.nodes[1].is_down = False
        waits.append(arguments[-1])
        return find(*arguments)

    monkeypatch.setattr(ControlPath, "find", back_by_then)
    with pytest.raises(RequestTimeoutError):
        box.create(name, init=X, layout="striped")
    assert waits[-1] <= 1.0  # not the timeout of the box, which has passed
    assert names(team.box()) == []


@pytest.mark.parametrize("name", ["w", "run/w"])
def test_the_state_of_an_optimizer_is_an_orphan_without_its_part(box, name):
    region = box.create(name, init=X, layout="striped")
    box.optimizer(region, "momentum", lr=0.5)
    assert layouts.find_orphans(box) == []
    box.free(region)
    assert len(layouts.find_orphans(box)) == 3
    for info in layouts.find_orphans(box):
        box.free(info)
    assert box.regions() == []


def test_freeing_a_state_leaves_its_region(box):
    region = box.create("w", init=X, layout="striped")
    optimizer = box.optimizer(region, "momentum", lr=0.5)
    box.free(*optimizer.states.values())
    assert box.attach("w").get().tolist() == X.tolist()
    assert len(names(box)) == 4


def test_of_two_creators_one_wins_whole(box):
    found = []

    def job(index):
        init = np.full(12, index, np.float32)
        region = box.create("w", init=init, exist_ok=True, layout="striped")
        found.append((region.address, *region.get().tolist()))

    in_threads(4, job)
    assert len(set(found)) == 1
    assert len(set(found[0][1:])) == 1
    assert len(names(box)) == 4


@pytest.mark.parametrize("layout", ["single", "striped"])
def test_create_beside_free_finds_the_region_or_creates_it(team, layout):
    """A region that is freed while it is opened, or in place of which one lost, is no error."""

    def job(_index):
        box = team.box()
        for _ in range(40):
            box.create("w", init=X, exist_ok=True, layout=layout)
            with contextlib.suppress(RegionNotFoundError, RegionFreedError):
                box.free("w")

    in_threads(3, job)
    assert names(team.box()) == []


def before_the_head_is_read(monkeypatch, job):
    """Do a job once, before the next read of a head."""
    head_of = Node.head_of

    def job_and_head_of(*arguments):
        monkeypatch.undo()
        job()
        return head_of(*arguments)

    monkeypatch.setattr(Node, "head_of", job_and_head_of)


def test_attach_finds_the_region_in_place_of_one_freed_meanwhile(box, team, monkeypatch):
    box.create("w", init=X, layout="striped")
    other = team.box()

    def replace():
        other.free("w")
        other.create("w", init=-X, layout="striped")

    before_the_head_is_read(monkeypatch, replace)
    assert box.attach("w").get().tolist() == (-X).tolist()


def test_attach_to_a_region_freed_meanwhile_ends_at_its_deadline(box, team, monkeypatch):
    box.create("w", init=X, layout="striped")
    other = team.box()
    before_the_head_is_read(monkeypatch, lambda: other.free("w"))
    with pytest.raises(RegionNotFoundError):
        box.attach("w", timeout_s=0.0)


def test_losers_of_a_race_hear_that_the_name_is_taken(box):
    lost = []

    def job(index):
        try:
            box.create("w", init=X, layout="striped")
        except RegionExistsError:
            lost.append(index)

    in_threads(4, job)
    assert len(lost) == 3
    assert len(names(box)) == 4


def test_a_part_that_was_freed_is_named(box, team):
    region = box.create("w", init=X, layout="striped")
    part = region.parts[1]
    box.free(next(info for info in box.regions() if info.address == part.address))
    with pytest.raises(RegionFreedError) as caught:
        region.put(np.zeros(12, np.float32))
    assert caught.value.facts["node"] == 1
    assert region[:4].get().tolist() == region[8:].get().tolist() == [0, 0, 0, 0]
    with pytest.raises(RegionFreedError, match="a part of this region was freed") as caught:
        team.box().attach("w")
    assert caught.value.facts["node"] == 1
    with pytest.raises(RegionFreedError, match="a part of this region was freed"):
        box.create("w", init=X, exist_ok=True, layout="striped")
    box.free("w")
    assert names(box) == []


def test_attaching_waits_for_the_head(box, team):
    found = []
    in_threads(
        2,
        lambda index: (
            found.append(team.box().attach("late", timeout_s=30.0).get().tolist())
            if index
            else box.create("late", init=X, layout="striped")
        ),
    )
    assert found == [X.tolist()]
    with pytest.raises(RegionNotFoundError):
        box.attach("never", timeout_s=0.0)
