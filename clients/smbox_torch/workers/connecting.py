"""Connection of a training script to its launcher's memory, with a random seed per worker."""

from __future__ import annotations

import os

import torch

import smbox
from smbox.box import Box
from smbox_torch.world import World

__all__ = ["connect"]


def connect() -> Box:
    """Connect to the memory node of ``SMBOX_ADDRESS``, as one worker among others.

    All workers run the same script with the same seed, and would draw the same batches and
    masks. Therefore this call reseeds torch's generators, except on rank 0, with their seed
    plus the rank.

    Returns:
        The connection, as :func:`smbox.connect` returns it.

    Raises:
        ConfigError: no address is set, or the launcher's variables contradict each other;
            nothing was seeded.
        ConnectError: no node answers at the address; nothing was seeded.
    """
    rank = World.from_env(os.environ).rank
    box = smbox.connect()
    if rank:
        torch.manual_seed((torch.initial_seed() + rank) % 2**64)
    return box
