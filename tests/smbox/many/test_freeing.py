"""Freeing striped regions: the time that it takes, and what is left if it does not end."""

from __future__ import annotations

import contextlib
import itertools
import time

import numpy as np
import pytest

from smbox.cli import layouts
from smbox.errors import RegionFreedError, RequestTimeoutError
from smbox.paths.control import ControlPath

X = np.arange(12, dtype=np.float32)
SHORT_S = 0.2


def names(box):
    return sorted(info.name.partition("#")[0] for info in box.regions())


@pytest.fixture
def hasty(team):
    return team.box(timeout_s=SHORT_S)


def test_all_parts_together_are_freed_in_the_time_of_one_call(box, team, monkeypatch):
    """All requests are sent first: a silent node takes no time from the others."""
    region, events = box.create("w", init=X, layout="striped"), []
    begin, end = ControlPath.begin_free, ControlPath.end_free

    def noted(control, address):
        events.append("begin")
        return begin(control, address)

    def slow(control, call, timeout_s):
        events.append(timeout_s)
        time.sleep(SHORT_S)
        return end(control, call, timeout_s)

    monkeypatch.setattr(ControlPath, "begin_free", noted)
    monkeypatch.setattr(ControlPath, "end_free", slow)
    box.free(region)
    head, parts, given_s = events[:2], events[2:5], [events[1], *events[5:]]
    assert head[0] == "begin"
    assert parts == ["begin"] * 3
    assert all(a - b >= SHORT_S for a, b in itertools.pairwise(given_s))


def test_a_free_that_died_half_way_can_be_ended(box):
    region = box.create("w", init=X, layout="striped")
    head = next(info for info in box.regions() if info.name == "w")
    box.home_of("w").free(head)
    assert len(layouts.find_orphans(box)) == 3
    with pytest.raises(RegionFreedError):
        box.free(region)
    assert names(box) == []


def test_freeing_names_the_first_node_that_does_not_answer(hasty, team):
    region = hasty.create(team.name_on(0), init=X, layout="striped")
    team.nodes[1].is_down = team.nodes[5].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        hasty.free(region)
    assert caught.value.facts["node"] == 1


AGAIN = {
    "the head's": (0, 4, contextlib.nullcontext()),
    "another": (1, 1, pytest.raises(RegionFreedError)),  # so it says of the head
}


@pytest.mark.parametrize(("lost", "left", "again"), AGAIN.values(), ids=AGAIN)
def test_what_a_silent_node_keeps_goes_when_the_region_is_freed_again(
    hasty, team, lost, left, again
):
    name = team.name_on(0)
    region = hasty.create(name, init=X, layout="striped")
    team.nodes[lost].is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        hasty.free(region)
    assert caught.value.facts["node"] == lost
    team.nodes[lost].is_down = False
    box = team.box()
    assert names(box) == [name] * left
    assert len(layouts.find_orphans(box)) == left % 4
    with again:
        box.free(region)
    assert names(box) == []
