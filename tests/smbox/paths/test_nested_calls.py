from __future__ import annotations

import signal

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.local_queue import LocalWork

ONES = np.ones(2 * STRIPE_NBYTES // 8 + 4)


def test_a_signal_handler_while_a_request_is_left_to_rest_is_refused(box, held, monkeypatch):
    region, refused = box.create("some", init=ONES), []

    def handler(*_):
        with pytest.raises(ConfigError, match="set a flag and return"):
            region.put(ONES)
        refused.append(True)

    before = signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr(LocalWork, "rested", lambda _: signal.raise_signal(signal.SIGUSR1))
    try:
        with held(region, 1):
            handle = region.accumulate_nb(ONES)  # waits for the stripe, and rests
        monkeypatch.undo()
        handle.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert refused
