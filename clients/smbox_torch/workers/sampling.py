"""Equal shares of a data set: a sampler for each worker of a run."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, DistributedSampler

from smbox_torch.world import World, world_or_default

__all__ = ["distributed_sampler"]


def distributed_sampler(
    dataset: Dataset[Any], *, world: World | None = None, **options: Any
) -> DistributedSampler[Any]:
    """Return the sampler of this worker; all workers get the same number of items.

    With equal batch sizes, all workers then do the same number of steps. If the number of items
    is not divisible by the number of workers, a few items are used twice; with
    ``drop_last=True`` a few are left out.

    Call ``set_epoch(epoch)`` before each epoch to change the order.

    Args:
        dataset: the data set, with a length; the same on all workers.
        world: place of this process in the run; None: from the launcher's variables.
        options: options of ``torch.utils.data.DistributedSampler``: shuffle, seed, drop_last.
    """
    world = world_or_default(world)
    return DistributedSampler(
        dataset, num_replicas=world.world_size, rank=world.rank, **options
    )
