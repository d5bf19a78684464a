"""The judge finds whatever is lost, doubled, torn or taken back."""

from __future__ import annotations

from collections import Counter

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


def counts_of(changes):
    return [
        sum(plan.touches(place, stripe) for place, _ in changes)
        for stripe in range(plan.STRIPES)
    ]


def logs():
    return {WHO: LifeLog(list(DONE), list(OPEN))}


@pytest.mark.parametrize("more", [[], OPEN[:1], OPEN[1:], OPEN])
def test_open_changes_may_be_in_or_not(more):
    changes = DONE + more
    assert judge(region_with(changes), counts_of(changes), logs()) == []


def test_a_change_may_be_in_one_stripe_and_not_in_the_next():
    contents, counts = region_with(DONE), counts_of(DONE)
    contents[plan.block_cells(1)] += plan.pattern(WHO)[plan.block_cells(1)] * plan.amount(5)
    counts[0] += 1
    assert judge(contents, counts, logs()) == []


def test_half_of_a_stripe_is_no_commit():
    found = logs()
    found[WHO].open = [Change(plan.WHOLE, 5)]
    contents, counts = region_with(DONE), counts_of(DONE)
    contents[plan.block_cells(0)] += plan.pattern(WHO)[plan.block_cells(0)] * plan.amount(5)
    counts[0] += 1
    (fault,) = judge(contents, counts, found)[:1]
    assert "both at once" in fault


def test_a_change_that_is_not_counted_and_a_count_without_a_change():
    contents = region_with([*DONE, OPEN[0]])
    (one, other) = judge(contents, counts_of(DONE), logs())
    assert "counts" in one
    assert "counts" in other
    more = counts_of(DONE)
    more[3] += 1
    (fault,) = judge(region_with(DONE), more, logs())
    assert "stripe 3 counts" in fault


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
    assert judge(region_with(changes), counts_of(DONE), logs())


def test_a_torn_block_and_a_torn_row():
    contents = region_with(DONE)
    contents[plan.block_cells(0)][0] -= plan.amount(2)
    contents[plan.row_cells(2, WHO)][1] = 6
    faults = judge(contents, counts_of(DONE), logs())
    assert len(faults) == 2
    assert "shared cell" in faults[0]
    assert "life 3 of client 0" in faults[1]


def test_the_result_is_readable():
    fates = Counter({"node kill": 2, "link pause": 1})
    verdict = Verdict(7, 20_000, 1, 0, fates, 90.0)
    assert (verdict.strikes, verdict.kills) == (3, 2)
    (line,) = verdict.text().splitlines()
    assert "seed 7, 1.5 minutes: 20000 acknowledged operations, 3 strikes" in line
    assert "inside a native commit 1 kills and 0 pauses" in line
    assert "exactly once" in line
    verdict.faults.append("a change is lost")
    assert "FAULT: a change is lost" in verdict.text()
    assert "exactly once" not in verdict.text()
