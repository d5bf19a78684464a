"""Hugging Face accelerate: one process per worker, numbered by its rank.

``accelerator.prepare`` takes a wrapped optimizer as any other, and passes ``eval`` and
``train`` on to it. What is left is who prints and saves: accelerate's main process has to be
rank 0 alone.
"""

from __future__ import annotations

import os

import smbox_torch.workers.connecting
from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.world import World

try:
    from accelerate import Accelerator, PartialState
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "smbox_torch.integrations.accelerate needs accelerate: pip install 'smbox[frameworks]'",
        name="accelerate",
    ) from error

__all__ = ["connect", "number"]


def connect(accelerator: Accelerator) -> Box:
    """Connect to the memory, and let accelerate's main process be rank 0 of the run.

    As :func:`smbox_torch.connect` this gives each worker random numbers of its own. Call it
    before ``accelerator.prepare``.

    Args:
        accelerator: of this process.

    Raises:
        ConfigError: accelerate has joined its processes by itself; nothing was changed.
        ConnectError: nobody answers at the address; nothing was changed.
    """
    check(accelerator)
    box = smbox_torch.workers.connecting.connect()
    number(accelerator)
    return box


def check(accelerator: Accelerator) -> None:
    """Raise ConfigError if accelerate's processes communicate with each other."""
    if accelerator.num_processes > 1:
        raise ConfigError(
            "accelerate has joined its processes by itself, so both would average: start the"
            " script by `smbox run` without --torchrun-env",
            processes=accelerator.num_processes,
        )


def number(accelerator: Accelerator) -> None:
    """Number this process by its rank; each still reads all its batches by itself."""
    world = World.from_env(os.environ)
    for state in (PartialState(), accelerator.state):
        state.process_index = world.rank
        state.local_process_index = world.local_rank
    if accelerator.dataloader_config.dispatch_batches is None:
        # Of an IterableDataset only process 0 would read, and send nothing to the others.
        accelerator.dataloader_config.dispatch_batches = False
