"""The judge finds whatever is lost, doubled, torn or taken back."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.testing.chaos import plan
from smbox.testing.chaos.log import Change, LifeLog
from smbox.testing.chaos.verdict import Verdict, judge

WHO = 3
DONE = [Change(1, 1), Change(plan.WHOLE, 2), Change(1, 3), Change(plan.PUTS + 2, 4)]
OPEN = [Change(1, 5), Change(plan.PUTS + 2, 6)]


def region_with(changes):
    contents, ones = np.zeros(plan.COUNT, np.int64), plan.pattern(WHO)
    for place, number in changes:
        if place >= plan.PUTS:
            contents[plan.row_cells(place - plan.PUTS, WHO)] = number
        else:
            cells = plan.window_cells(place)
            contents[cells] += ones[cells] * plan.amount(number)
    return contents


def logs():
    return {WHO: LifeLog(list(DONE), list(OPEN))}


@pytest.mark.parametrize("more", [[], OPEN[:1], OPEN[1:], OPEN])
def test_open_changes_may_be_in_or_not(more):
    assert judge(region_with(DONE + more), logs()) == []


def test_half_of_an_open_change_may_be_in():
    contents = region_with(DONE)
    contents[plan.block_cells(1)] += plan.pattern(WHO)[plan.block_cells(1)] * plan.amount(5)
    assert judge(contents, logs()) == []


@pytest.mark.parametrize(
    "changes",
    [
        DONE[1:],
        [*DONE, DONE[0]],
        [*DONE, OPEN[0], OPEN[0]],
        [DONE[0], DONE[1], DONE[3], OPEN[0]],  # as many as there should be, but not these
        DONE[:3],
        [*DONE, Change(plan.PUTS + 2, 1)],
        [*DONE, Change(0, 9)],
    ],
    ids=["lost", "doubled", "open doubled", "swapped", "put lost", "put late", "unknown"],
)
def test_what_must_not_be(changes):
    assert judge(region_with(changes), logs())


def test_a_torn_block_and_a_torn_row():
    contents = region_with(DONE)
    contents[plan.block_cells(0)][0] -= plan.amount(2)
    contents[plan.row_cells(2, WHO)][1] = 6
    faults = judge(contents, logs())
    assert len(faults) == 2
    assert "shared cell" in faults[0]
    assert "life 3 of client 0" in faults[1]


def test_the_result_is_readable():
    verdict = Verdict(7, 20_000, {"node kill": 2, "link pause": 1}, 3.0)
    assert verdict.kills == 2
    assert "exactly once" in verdict.text()
    verdict.faults.append("a change is lost")
    assert "FAULT: a change is lost" in verdict.text()
    assert "exactly once" not in verdict.text()
