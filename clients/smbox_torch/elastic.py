"""The moving rate of elastic averaging: its default and the bounds of stability.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651. Bounds are for a quadratic of curvature 1 with learning rate lr.

Fused (the exchange is one atomic operation, as in round-robin EASGD): stable iff
``moving_rate <= (4 - 2 lr) / (4 - lr)``, whatever the number of workers.
Unfused (read, compute, add, as in ShmCaffe's SEASGD): if all workers read the same center,
stable iff ``workers * moving_rate <= (4 - 2 lr) / (2 - lr + 2 / workers)``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from smbox.errors import ConfigError
from smbox_torch.world import World

__all__ = [
    "StabilityWarning",
    "default_moving_rate",
    "default_workers",
    "fused_bound",
    "moving_rate_or_default",
    "unfused_bound",
    "warn_if_unstable",
]

BETA = 0.9
"""workers * moving_rate of the paper's experiments and of its reference code (mpiT)."""


class StabilityWarning(UserWarning):
    """The moving rate is outside the range in which the averaging is known to converge."""


def default_workers(workers: int | None, env: Mapping[str, str] = os.environ) -> int:
    """Return the number of workers: as given, else as the launcher tells, else 1.

    Raises:
        ConfigError: fewer than one worker, or the launcher's variables contradict each other.
    """
    count = World.from_env(env).world_size if workers is None else workers
    if count < 1:
        raise ConfigError("there is at least one worker", workers=count)
    return count


def default_moving_rate(workers: int) -> float:
    """Return ``0.9 / workers``."""
    return BETA / workers


def moving_rate_or_default(moving_rate: float | None, workers: int) -> float:
    """Return the moving rate as given or by default.

    Raises:
        ConfigError: it is not within (0, 1].
    """
    rate = default_moving_rate(workers) if moving_rate is None else float(moving_rate)
    if not 0.0 < rate <= 1.0:
        raise ConfigError("moving_rate must be above 0 and at most 1", moving_rate=rate)
    return rate


def fused_bound(lr: float = 0.0) -> float:
    """Return the largest stable moving rate of the fused exchange (curvature 1)."""
    return (4.0 - 2.0 * lr) / (4.0 - lr)


def unfused_bound(workers: int, lr: float = 0.0) -> float:
    """Return the largest stable ``workers * moving_rate`` of three-step exchanges."""
    return (4.0 - 2.0 * lr) / (2.0 - lr + 2.0 / workers)


def warn_if_unstable(moving_rate: float, workers: int) -> None:
    """Warn where three-step exchanges may diverge, naming the bound and the cures."""
    bound = unfused_bound(workers)
    if workers * moving_rate > bound:
        warnings.warn(
            f"workers * moving_rate = {workers * moving_rate:.3g} is above {bound:.3g}, "
            f"the bound of separate read and add: this may diverge. Use a moving_rate of "
            f"{default_moving_rate(workers):.3g} (0.9 / workers), or EASGD, whose fused "
            f"exchange is stable up to {fused_bound():.3g} for any number of workers",
            StabilityWarning,
            stacklevel=3,
        )
