"""Tensors of one rank copied to the others of its host: buffers such as running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from smbox.memory.layout import align
from smbox_torch.buckets import ALIGN_NBYTES, described, typed
from smbox_torch.host_memory import HostMemory
from smbox_torch.rendezvous import Rendezvous
from smbox_torch.world import World

PUBLISHED: Final = 2
"""Lane of the rendezvous that counts publications."""


class Publisher:
    """One rank's end of publications that all ranks make together.

    Args:
        tensors: what is published, on any device; the same on every rank.
        shared: ``u8[state_nbytes(tensors)]`` that all ranks map.
        rendezvous: of the ranks.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], shared: torch.Tensor, rendezvous: Rendezvous
    ) -> None:
        self._rendezvous = rendezvous
        self._count = 0
        self._pairs = []
        at_byte = 0
        for tensor in tensors:
            self._pairs.append((tensor, typed(shared, at_byte, tensor)))
            at_byte += _nbytes(tensor)

    @torch.no_grad()
    def publish(self, source: int) -> None:
        """Give every rank the tensors of rank ``source``.

        The ranks must have met since the publication before: only then has everybody read it.

        Raises:
            WorkerLostError: the source died, left or did not come.
        """
        self._count += 1
        is_mine = self._rendezvous.rank == source
        if not is_mine:
            self._rendezvous.wait_for(source, PUBLISHED, self._count)
        for tensor, shared in self._pairs:
            if is_mine:
                shared.copy_(tensor)
            else:
                tensor.copy_(shared)
        self._rendezvous.raise_to(PUBLISHED, self._count)


def share(tensors: Sequence[torch.Tensor], world: World, name: str, timeout_s: float) -> None:
    """Give all ranks of a host the tensors of local rank 0, once; in memory that goes again.

    Raises:
        ConfigError: the ranks' tensors have other shapes or dtypes; nothing is left.
        WorkerLostError: a rank never came; nothing is left.
    """
    if not tensors:
        return
    memory = HostMemory.join(
        name,
        world,
        state_nbytes(tensors),
        layout=described(tensors, (), 0),
        timeout_s=timeout_s,
    )
    try:
        Publisher(tensors, torch.from_numpy(memory.data), memory.rendezvous).publish(0)
    finally:
        memory.close()


def state_nbytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of shared memory that tensors need."""
    return sum(_nbytes(tensor) for tensor in tensors)


def _nbytes(tensor: torch.Tensor) -> int:
    return align(tensor.nbytes, ALIGN_NBYTES)
