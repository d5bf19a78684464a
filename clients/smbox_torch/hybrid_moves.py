"""How the elastic move of a group reaches all its ranks: by shared memory, or by a broadcast.

The root fills ``tensors`` with the move that the memory told it and calls ``tell``; the other
ranks call ``hear`` and find it there. Both happen once per exchange, on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from smbox.memory.layout import align
from smbox_torch.buckets import ALIGN_NBYTES, typed
from smbox_torch.flat import FlatBuffer
from smbox_torch.host_memory import HostMemory
from smbox_torch.torch_sync import root_of
from smbox_torch.world import World

__all__ = ["GroupMoves", "HostMoves", "TorchMoves"]

TOLD = 0  # lane of the rendezvous: exchanges whose move lies in the shared memory


class GroupMoves(Protocol):
    """One rank's end.

    Attributes:
        tensors: one move per flat buffer, on the CPU.
    """

    tensors: Sequence[torch.Tensor]

    def tell(self) -> None:
        """Root: give the others what is in ``tensors``."""

    def hear(self) -> None:
        """Others: wait for what the root tells."""

    def close(self) -> None:
        """Leave."""


class HostMoves:
    """The root writes the move right into memory that the ranks of its host share.

    The root writes the next one only after a round of gradients, which every rank begins after
    it has used this one.

    Args:
        name: of the memory.
        world: who this process is.
        flat: what is moved; of the same sizes on every rank.
        timeout_s: until a rank that does not answer is given up, in seconds.

    Raises:
        WorkerLostError: a rank of this host never came; ``hear``: the root is lost.
    """

    def __init__(
        self, name: str, world: World, flat: Sequence[FlatBuffer], timeout_s: float
    ) -> None:
        nbytes = sum(_nbytes(buffer) for buffer in flat)
        self._memory = HostMemory.join(name, world, nbytes, timeout_s=timeout_s)
        self._told = 0
        data, at_byte, tensors = torch.from_numpy(self._memory.data), 0, []
        for buffer in flat:
            tensors.append(typed(data, at_byte, buffer.flat))
            at_byte += _nbytes(buffer)
        self.tensors: Sequence[torch.Tensor] = tensors

    def tell(self) -> None:
        """Say that the move is there."""
        self._told += 1
        self._memory.rendezvous.raise_to(TOLD, self._told)

    def hear(self) -> None:
        """Wait for the move."""
        self._told += 1
        self._memory.rendezvous.wait_for(0, TOLD, self._told)

    def close(self) -> None:
        """Leave the memory."""
        self._memory.close()


class TorchMoves:
    """The root broadcasts the move to its ``torch.distributed`` group.

    Args:
        group: of the ranks; NCCL's moves it between GPUs.
        flat: what is moved.
    """

    def __init__(self, group: dist.ProcessGroup, flat: Sequence[FlatBuffer]) -> None:
        self._group = group
        self.tensors: Sequence[torch.Tensor] = [
            torch.empty_like(buffer.flat, device="cpu") for buffer in flat
        ]
        # What a group sends lies where its parameters are; on the CPU that is the same memory.
        self._sent = [
            told if buffer.flat.device.type == "cpu" else torch.empty_like(buffer.flat)
            for told, buffer in zip(self.tensors, flat, strict=True)
        ]

    def tell(self) -> None:
        """Broadcast the move."""
        for told, sent in zip(self.tensors, self._sent, strict=True):
            if sent is not told:
                sent.copy_(told)
        self._broadcast()

    def hear(self) -> None:
        """Receive the move."""
        self._broadcast()
        for told, sent in zip(self.tensors, self._sent, strict=True):
            if sent is not told:
                told.copy_(sent)

    def _broadcast(self) -> None:
        for sent in self._sent:
            dist.broadcast(sent, root_of(self._group), group=self._group)

    def close(self) -> None:
        """Leave; the group is the caller's.

        Nothing may hold a group that has been destroyed: torch can abort as the process ends.
        """
        self.__dict__.pop("_group", None)


def _nbytes(buffer: FlatBuffer) -> int:
    return align(buffer.flat.nbytes, ALIGN_NBYTES)
