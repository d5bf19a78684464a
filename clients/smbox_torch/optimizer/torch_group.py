"""A warning if ``torch.distributed`` communicates in addition to smbox_torch."""

from __future__ import annotations

import warnings

import torch.distributed as dist

__all__ = ["CommunicationWarning", "warn_if_both_communicate"]


class CommunicationWarning(UserWarning):
    """Both torch.distributed and smbox_torch synchronize the workers."""


def warn_if_both_communicate() -> None:
    """Warn once per process if torch.distributed is initialized with several ranks."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        warnings.warn(
            f"torch.distributed is initialized with {dist.get_world_size()} ranks, and an"
            " optimizer of smbox_torch exchanges as well: both communicate, and gradients are"
            " averaged twice if a model is wrapped in DistributedDataParallel. Start the script"
            " by 'smbox run' without --torchrun-env, or give group= to SyncGroup or HybridSGD",
            CommunicationWarning,
            stacklevel=1,  # the same place for all classes, so that it is shown once
        )
