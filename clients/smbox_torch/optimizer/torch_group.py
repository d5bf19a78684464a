"""A warning where ``torch.distributed`` communicates beside a class of smbox_torch."""

from __future__ import annotations

import warnings

import torch.distributed as dist

__all__ = ["CommunicationWarning", "warn_if_both_communicate"]


class CommunicationWarning(UserWarning):
    """Workers are kept together twice: by torch.distributed and by smbox_torch."""


def warn_if_both_communicate() -> None:
    """Warn, once a process, where torch.distributed is set up for several ranks."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        warnings.warn(
            f"torch.distributed is initialized with {dist.get_world_size()} ranks, and an"
            " optimizer of smbox_torch exchanges as well: both communicate, and gradients are"
            " averaged twice if a model is wrapped in DistributedDataParallel. Start the script"
            " by 'smbox run' without --torchrun-env, or give group= to SyncGroup or HybridSGD",
            CommunicationWarning,
            stacklevel=1,  # the same place for all classes, so that it is shown once
        )
