"""Equal shares of a data set: a sampler for each worker of a run."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, DistributedSampler

from smbox_torch.world import World, world_or_default

__all__ = ["distributed_sampler"]


def distributed_sampler(
    dataset: Dataset[Any], *, world: World | None = None, **options: Any
) -> DistributedSampler[Any]:
    """Return the sampler of this worker: each has equally many of the data set's items.

    With batches of one size, all workers then do equally many steps. Where the number of items
    is not divisible by that of workers, a few items come twice; ``drop_last=True`` leaves a few
    out.
    Call ``set_epoch(epoch)`` before each epoch for another order.

    Args:
        dataset: with a length; the same on all workers.
        world: who this process is; None: the launcher's variables.
        options: of ``torch.utils.data.DistributedSampler``: shuffle, seed, drop_last.
    """
    world = world_or_default(world)
    return DistributedSampler(
        dataset, num_replicas=world.world_size, rank=world.rank, **options
    )
