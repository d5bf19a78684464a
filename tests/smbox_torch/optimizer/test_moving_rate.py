from __future__ import annotations

import pytest

from smbox_torch.elastic.stability import fused_bound
from smbox_torch.optimizer.moving_rate import FUSED_MOVING_RATE, unfused_moving_rate


def test_the_default_of_one_operation_is_stable_at_most_learning_rates():
    assert fused_bound(1.4) > FUSED_MOVING_RATE == 0.45
    assert fused_bound(0.4) < 0.9  # a single worker's rate by the paper's rule


def test_the_default_of_separate_read_and_add_is_the_papers():
    assert unfused_moving_rate(6) == pytest.approx(0.15)
