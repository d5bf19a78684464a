"""The moving rate of a worker and the center towards each other: its defaults.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651.
"""

from __future__ import annotations

__all__ = ["default_moving_rate", "unfused_moving_rate"]

BETA = 0.9
"""workers * moving_rate of the paper's experiments and of its reference code (mpiT)."""

LEAST = 0.45
"""Measured (docs/algorithms/easgd.md): with 0.9 / workers, 4 workers and more learn worse. The
bound of the fused exchange does not depend on the number of workers."""


def default_moving_rate(workers: int) -> float:
    """Return ``0.9 / workers``, but at least 0.45: for exchanges that are one operation."""
    return max(BETA / workers, LEAST)


def unfused_moving_rate(workers: int) -> float:
    """Return ``0.9 / workers``: for exchanges that read first and add later."""
    return BETA / workers
