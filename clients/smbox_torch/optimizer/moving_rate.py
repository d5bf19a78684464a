"""The moving rate of a worker and the center towards each other: its defaults.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FUSED_MOVING_RATE", "unfused_moving_rate"]

FUSED_MOVING_RATE: Final = 0.45
"""For exchanges that are one operation, whose bound does not depend on the number of workers.
Measured (docs/algorithms/easgd.md): with less, 4 workers and more learn worse; with more, the
learning rates at which the exchange is stable become few."""

BETA: Final = 0.9
"""workers * moving_rate of the paper's experiments and of its reference code (mpiT)."""


def unfused_moving_rate(workers: int) -> float:
    """Return ``0.9 / workers``: for exchanges that read first and add later."""
    return BETA / workers
