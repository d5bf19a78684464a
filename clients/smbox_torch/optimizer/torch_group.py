"""A warning if ``torch.distributed`` communicates in addition to smbox_torch."""

from __future__ import annotations

import warnings

import torch.distributed as dist

__all__ = ["CommunicationWarning", "warn_if_both_communicate"]


class CommunicationWarning(UserWarning):
    """Both torch.distributed and smbox_torch synchronize the workers."""


def warn_if_both_communicate(workers: int) -> None:
    """Warn once per process if torch.distributed is initialized with several ranks.

    Args:
        workers: number of workers of the optimizer's run.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    told = f"torch.distributed is initialized with {dist.get_world_size()} ranks, "
    if workers == 1:
        told += (
            "but the run of this optimizer of smbox_torch began with one worker, so this worker"
            " exchanges with none of these ranks. If each rank is to be a worker, set RANK and"
            " WORLD_SIZE in its process before the optimizer is wrapped, or give group= to"
            " SyncGroup or HybridSGD"
        )
    else:
        told += (
            f"and an optimizer of smbox_torch exchanges with {workers - 1} other workers as"
            " well: both communicate, and average twice if a model is wrapped in"
            " DistributedDataParallel. Start the script by 'smbox run' without --torchrun-env,"
            " or give group= to SyncGroup or HybridSGD"
        )
    # The same place for all classes, so that it is shown once.
    warnings.warn(told, CommunicationWarning, stacklevel=1)
