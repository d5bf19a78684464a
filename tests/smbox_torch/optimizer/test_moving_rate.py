from __future__ import annotations

import pytest

from smbox_torch.optimizer.moving_rate import default_moving_rate, unfused_moving_rate


def test_the_default_is_the_papers_for_one_and_two_workers_and_not_less_for_more():
    assert [default_moving_rate(n) for n in (1, 2, 4, 16)] == pytest.approx(
        [0.9, 0.45, 0.45, 0.45]
    )


def test_the_default_of_separate_read_and_add_is_the_papers():
    assert unfused_moving_rate(6) == pytest.approx(0.15)
