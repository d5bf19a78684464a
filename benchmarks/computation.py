"""Real computation that takes a given time, for benchmarks of what passes beside it."""

from __future__ import annotations

import time

import torch

WIDTH, BATCH = 64, 16
SKIPPED = 2
CALIBRATION = 50
"""Gradients whose time says how many are needed."""


class Computation:
    """Gradients of a small network, whose weights and data stay in a core's cache.

    Args:
        compute_ms: that they are to take in all, in milliseconds of this thread's CPU time;
            at least one is computed.
    """

    def __init__(self, compute_ms: float) -> None:
        self._network = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
        )
        self._x = torch.randn(BATCH, WIDTH)
        self._count = 1
        for _ in range(SKIPPED):
            self.run()
        self._count = CALIBRATION
        began_s = time.thread_time()
        self.run()
        each_ms = 1000.0 * (time.thread_time() - began_s) / CALIBRATION
        self._count = max(1, round(compute_ms / each_ms))

    def run(self) -> None:
        """Compute them all."""
        for _ in range(self._count):
            self._network.zero_grad()
            self._network(self._x).sum().backward()
