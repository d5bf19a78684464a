from __future__ import annotations

import pytest

from smbox_torch.optimizer.moving_rate import default_moving_rate


def test_the_default_is_the_papers():
    assert default_moving_rate(6) == pytest.approx(0.15)
