"""Stability bounds of the moving rate of elastic averaging.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651. The bounds hold for a quadratic of curvature 1 with learning rate lr.

Fused (the exchange is one atomic operation, as in round-robin EASGD): stable iff
``moving_rate <= (4 - 2 lr) / (4 - lr)``, for any number of workers.
Unfused (read, compute, add, as in ShmCaffe's SEASGD): if all workers read the same center,
stable iff ``workers * moving_rate <= (4 - 2 lr) / (2 - lr + 2 / workers)``.
"""

from __future__ import annotations

import warnings

from smbox_torch.checks import share
from smbox_torch.optimizer.moving_rate import unfused_moving_rate

__all__ = [
    "StabilityWarning",
    "check_moving_rate",
    "fused_bound",
    "unfused_bound",
    "warn_if_unstable",
]


class StabilityWarning(UserWarning):
    """The moving rate is outside the range in which the averaging is known to converge."""


def check_moving_rate(moving_rate: float | None) -> float | None:
    """Return the moving rate; None selects the default.

    Raises:
        TypeError: it is not a number.
        ConfigError: it is not in (0, 1].
    """
    return None if moving_rate is None else share("moving_rate", moving_rate)


def fused_bound(lr: float = 0.0) -> float:
    """Return the largest stable moving rate of the fused exchange (curvature 1)."""
    return (4.0 - 2.0 * lr) / (4.0 - lr)


def unfused_bound(workers: int, lr: float = 0.0) -> float:
    """Return the largest stable ``workers * moving_rate`` of three-step exchanges."""
    return (4.0 - 2.0 * lr) / (2.0 - lr + 2.0 / workers)


def warn_if_unstable(moving_rate: float | None, workers: int) -> None:
    """Warn if unfused exchanges may diverge; the warning names the bound and the remedies.

    Args:
        moving_rate: as given by the user. None: the default, which follows the number of living
            workers and is below the bound for any number.
        workers: number of workers with which the run was started.
    """
    bound = unfused_bound(workers)
    if moving_rate is not None and workers * moving_rate > bound:
        warnings.warn(
            f"workers * moving_rate = {workers * moving_rate:.3g} is above {bound:.3g}, "
            f"the bound of separate read and add: this may diverge. Use a moving_rate of "
            f"{unfused_moving_rate(workers):.3g} (0.9 / workers), or EASGD, whose fused "
            f"exchange is stable up to {fused_bound():.3g} for any number of workers",
            StabilityWarning,
            stacklevel=3,
        )
