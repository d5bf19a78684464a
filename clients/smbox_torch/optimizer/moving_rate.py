"""The moving rate of a worker and the center towards each other: its default.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651.
"""

from __future__ import annotations

__all__ = ["default_moving_rate"]

BETA = 0.9
"""workers * moving_rate of the paper's experiments and of its reference code (mpiT)."""


def default_moving_rate(workers: int) -> float:
    """Return ``0.9 / workers``."""
    return BETA / workers
