"""Adapter for Hugging Face accelerate: one process per worker, numbered by its rank.

``accelerator.prepare`` accepts a wrapped optimizer, and forwards ``eval`` and ``train`` to it.
This adapter makes only rank 0 accelerate's main process, which prints and saves.
"""

from __future__ import annotations

import os
from collections.abc import Callable

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
    """Connect to the memory, and make rank 0 of the run accelerate's main process.

    Like :func:`smbox_torch.connect` it gives each worker its own random seed. Call it before
    ``accelerator.prepare``.

    Args:
        accelerator: the accelerator of this process.

    Raises:
        ConfigError: accelerate's processes communicate with each other; nothing was changed.
        ConnectError: no node answers at the address; nothing was changed.
    """
    check(accelerator)
    box = smbox_torch.workers.connecting.connect()
    number(accelerator)
    return box


def check(accelerator: Accelerator) -> None:
    """Raise ConfigError if accelerate's processes communicate with each other."""
    if accelerator.num_processes > 1:
        raise ConfigError(
            "accelerate has connected its processes, and would average beside smbox:"
            " start the script by `smbox run` without --torchrun-env",
            processes=accelerator.num_processes,
        )


def number(accelerator: Accelerator) -> None:
    """Give this process the number of its rank; it still reads batches of its own."""
    world = World.from_env(os.environ)
    state = PartialState()
    for each in (state, accelerator.state):
        each.process_index = world.rank
        each.local_process_index = world.local_rank
    for name, index in (
        ("on_main_process", world.rank),
        ("on_local_main_process", world.local_rank),
    ):
        if index:  # alone, a process runs all functions, also those of the main process
            setattr(state, name, _for_another_process)
    loading = accelerator.dataloader_config
    if loading.data_seed is not None:
        loading.data_seed += world.rank  # else all workers would read the same batches
    if loading.dispatch_batches is None:
        # Else only process 0 would read an IterableDataset, and send the others nothing.
        loading.dispatch_batches = False


def _for_another_process(
    function: Callable[..., object] | None = None,  # noqa: ARG001 - accelerate's name
) -> Callable[..., None]:
    """Decorate a function that only another process runs."""
    return _nothing


def _nothing(*_: object, **__: object) -> None:
    """Do nothing; no lambda, which would keep accelerate's state from being pickled."""
