from __future__ import annotations

import time

from lab import computing


def test_waiting_replaces_all_computations_but_the_first():
    calls: list[int] = []
    waiting = computing.Computing.from_env(lambda: calls.append(1), {computing.WAIT_S: "0.05"})
    began_s = time.monotonic()
    waiting.run()
    waiting.run()
    assert time.monotonic() - began_s >= 0.1
    assert len(calls) == 1


def test_without_a_time_to_wait_each_batch_is_computed():
    calls: list[int] = []
    real = computing.Computing.from_env(lambda: calls.append(1), {})
    real.run()
    real.run()
    assert len(calls) == 2
