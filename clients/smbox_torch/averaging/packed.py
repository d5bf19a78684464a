"""Tensors packed into one array of bytes for a transfer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smbox.memory.layout import align
from smbox_torch.averaging.buckets import ALIGN_NBYTES, described, typed
from smbox_torch.averaging.host_memory import HostMemory
from smbox_torch.world import World

__all__ = ["Packed", "packed_nbytes", "places", "share"]

STORED = 0
"""Counter of the rendezvous: 1 once the first rank's tensors are in the memory."""


class Packed:
    """Tensors and the memory for their bytes.

    Args:
        tensors: tensors of any dtypes, on any device.
        memory: ``u8[packed_nbytes(tensors)]``.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> None:
        self.memory = memory
        self._pairs = list(zip(tensors, places(tensors, memory), strict=True))

    @torch.no_grad()
    def store(self) -> None:
        """Copy the tensors to the memory."""
        for tensor, place in self._pairs:
            place.copy_(tensor)

    @torch.no_grad()
    def load(self) -> None:
        """Copy the memory to the tensors."""
        for tensor, place in self._pairs:
            tensor.copy_(place)


def places(tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> list[torch.Tensor]:
    """View ``u8`` memory as the places of tensors, with their dtypes and shapes."""
    views, at_byte = [], 0
    for tensor in tensors:
        views.append(typed(memory, at_byte, tensor))
        at_byte += _nbytes(tensor)
    return views


def packed_nbytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the number of bytes for tensors, each aligned to a cache line."""
    return sum(_nbytes(tensor) for tensor in tensors)


def _nbytes(tensor: torch.Tensor) -> int:
    return align(tensor.nbytes, ALIGN_NBYTES)


def share(tensors: Sequence[torch.Tensor], world: World, name: str, timeout_s: float) -> None:
    """Copy the tensors of local rank 0 to all ranks of a host, through temporary memory.

    Raises:
        ConfigError: the ranks' tensors have different shapes or dtypes; the memory was removed.
        WorkerLostError: a rank never arrived; the memory was removed.
    """
    memory = HostMemory.join(
        name,
        world,
        packed_nbytes(tensors),
        layout=described(tensors, (), 0),
        timeout_s=timeout_s,
    )
    try:
        packed = Packed(tensors, torch.from_numpy(memory.data))
        if world.is_group_root:
            packed.store()
            memory.rendezvous.raise_to(STORED, 1)
        else:
            memory.rendezvous.wait_for(0, STORED, 1)
            packed.load()
    finally:
        memory.close()
