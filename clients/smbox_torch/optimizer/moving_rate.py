"""Defaults of the moving rate of elastic averaging.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FUSED_MOVING_RATE", "unfused_moving_rate"]

FUSED_MOVING_RATE: Final = 0.45
"""Default for fused exchanges, whose stability does not depend on the number of workers.
Measured (docs/algorithms/easgd.md): a smaller rate is less accurate with 4 or more workers; a
larger rate restricts the learning rates at which the exchange is stable."""

BETA: Final = 0.9
"""workers * moving_rate of the paper's experiments and of its reference code (mpiT)."""


def unfused_moving_rate(workers: int) -> float:
    """Return ``0.9 / workers``, the default for exchanges with separate read and add."""
    return BETA / workers
