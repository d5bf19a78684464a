from __future__ import annotations

import time

from smbox_torch.planning.compute_time import median_s


def test_the_time_is_that_of_one_computation():
    assert 0.01 <= median_s(lambda: time.sleep(0.01), 3) < 1.0
