"""Cells: nobody's overlap, windows cross stripes, and sums tell what is missing."""

from __future__ import annotations

import numpy as np

from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.chaos import plan


def test_cells_of_lives_do_not_overlap():
    taken = np.zeros(plan.COUNT, np.int64)
    for block in range(2 * plan.STRIPES):
        taken[plan.block_cells(block)] += 1
    for who in range(plan.CLIENTS * plan.LIVES):
        for stripe in range(plan.STRIPES):
            taken[plan.row_cells(stripe, who)] += 1
    assert taken.max() == 1
    assert plan.identity(plan.CLIENTS - 1, plan.LIVES - 1) == plan.CLIENTS * plan.LIVES - 1


def test_every_inner_window_crosses_stripes():
    for window in range(plan.WHOLE + 1):
        cells = plan.window_cells(window)
        stripes = (cells.stop - 1) * 8 // STRIPE_NBYTES - cells.start * 8 // STRIPE_NBYTES
        assert stripes == {0: 0, plan.EDGES - 1: 0, plan.WHOLE: 3}.get(window, 1)
        covered = [plan.block_cells(block) for block in plan.blocks(window)]
        assert all(cells.start <= each.start and each.stop <= cells.stop for each in covered)


def test_a_change_keeps_every_block_whole():
    cells = plan.pattern(7) * plan.amount(3)
    for block in range(2 * plan.STRIPES):
        part = cells[plan.block_cells(block)]
        assert plan.block_fault(part) is None
        assert part[8] == plan.amount(3)
        part[0] += 1
        assert "sum" in (plan.block_fault(part) or "")


def test_sums_that_wrap_still_agree():
    cells = np.zeros(plan.BLOCK, np.int64)
    cells[1:4] = 1 << 62
    cells[0] = -(1 << 62)
    assert plan.block_fault(cells) is None


def test_a_change_commits_in_the_stripes_of_its_place():
    assert [plan.touches(1, stripe) for stripe in range(4)] == [True, True, False, False]
    assert [plan.touches(plan.PUTS + 2, stripe) for stripe in range(4)] == [
        *(False, False, True, False)
    ]
    assert all(plan.touches(plan.WHOLE, stripe) for stripe in range(4))
