"""The check for algorithms that accept only ``torch.optim.SGD`` without momentum."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smbox.errors import ConfigError
from smbox_torch.checks import check_optimizer

__all__ = ["check_plain_sgd", "check_settings"]


def check_plain_sgd(
    optimizer: torch.optim.Optimizer, algorithm: str, instead: str, refused: Sequence[str]
) -> None:
    """Check that an optimizer is ``torch.optim.SGD`` without the rejected settings.

    Args:
        optimizer: the optimizer that the user passed.
        algorithm: name of the algorithm, for the error.
        instead: name of an algorithm that accepts any optimizer, for the error.
        refused: rejected settings of SGD's groups.

    Raises:
        TypeError: it is not an optimizer.
        ConfigError: it is another optimizer, or has one of these settings.
    """
    check_optimizer(optimizer)
    if type(optimizer) is not torch.optim.SGD:
        raise ConfigError(
            f"{algorithm} is SGD with its own momentum: give it torch.optim.SGD without "
            f"momentum, or use {instead}, which steps with any optimizer",
            optimizer=type(optimizer).__name__,
        )
    check_settings(optimizer, algorithm, refused)


def check_settings(
    optimizer: torch.optim.Optimizer, algorithm: str, refused: Sequence[str]
) -> None:
    """Raise ConfigError if a group of the optimizer has one of these settings.

    A step checks it again: a scheduler or a loaded state may have set them.
    """
    for group in optimizer.param_groups:
        given = {key: group[key] for key in refused if group.get(key)}
        if given:
            raise ConfigError(
                f"{algorithm} has its own momentum: leave these settings of torch.optim.SGD "
                "out (negate the loss to maximize), and give OneCycleLR and CyclicLR "
                "cycle_momentum=False",
                **given,
            )
