"""Broadcasts of a group's move: by shared memory, a collective operation, or a node.

The root writes the move that the memory returned to ``tensors`` and calls ``publish``. Then
every rank, including the root, calls ``receive``, reads ``tensors``, and calls ``release``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from smbox.memory.layout import align
from smbox_torch.averaging.box_group import AnyGroup, BoxGroup, Relay
from smbox_torch.averaging.buckets import ALIGN_NBYTES, typed
from smbox_torch.averaging.host_mean import HostMean
from smbox_torch.averaging.host_memory import HostMemory
from smbox_torch.averaging.torch_sum import group_errors, root_of
from smbox_torch.elastic.overlap import Moves, NoBroadcast
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.world import World

__all__ = [
    "BoxBroadcast",
    "GroupBroadcast",
    "HostBroadcast",
    "TorchBroadcast",
    "open_broadcast",
]

PUBLISHED = 0  # counter of the rendezvous: exchanges whose move lies in the shared memory
RELEASED = 1  # counter: exchanges whose move this rank needs no more
DUE = 2  # counter: exchanges that a step of this rank has come to


class GroupBroadcast(Moves, Protocol):
    """One rank's end."""

    def announce_due(self) -> None:
        """Say that this rank's step has come to an exchange."""

    def is_due(self) -> bool:
        """Tell whether another rank's step has come to one, and this one's has not."""

    def disable_timeout(self) -> None:
        """Say that the next move is the last, for which the root waits for other groups."""

    def close(self) -> None:
        """Leave."""


class HostBroadcast:
    """The root writes the move right into memory that the ranks of its host share.

    Args:
        name: of the memory.
        world: who this process is.
        flat: what is moved; of the same sizes on every rank.
        timeout_s: until a rank that does not answer is given up, in seconds.
        sets: of moves that exchanges fill in turn.
        mean: of the ranks' gradients; tells whether the root left out the step that waits.

    Raises:
        WorkerLostError: a rank of this host never came; ``receive``: the root is lost;
            ``wait_writable``: a rank is lost.
        StepMismatchError: ``receive``: the root skipped the step.
    """

    def __init__(
        self,
        name: str,
        world: World,
        flat: Sequence[FlatBuffer],
        timeout_s: float,
        *,
        sets: int = 1,
        mean: HostMean | None = None,
    ) -> None:
        self._mean = mean
        nbytes = sets * sum(_nbytes(buffer) for buffer in flat)
        self._memory = HostMemory.join(name, world, nbytes, timeout_s=timeout_s)
        self._done = 0
        data, at_byte = torch.from_numpy(self._memory.data), 0
        self._sets: list[list[torch.Tensor]] = [[] for _ in range(sets)]
        for tensors in self._sets:
            for buffer in flat:
                tensors.append(typed(data, at_byte, buffer.wide))
                at_byte += _nbytes(buffer)

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The set of the exchange that is next or under way."""
        return self._sets[self._done % len(self._sets)]

    def announce_due(self) -> None:
        """Say so, to ranks that only follow."""
        self._memory.rendezvous.raise_to(DUE, self._done + 1)

    def is_due(self) -> bool:
        """Look at what the others say."""
        counters = self._memory.rendezvous.counters(DUE)
        return max(counters) > max(self._done, counters[self._memory.rendezvous.rank])

    def disable_timeout(self) -> None:
        """Wait for the root as long as it lives, from now on."""
        self._memory.rendezvous.timeout_s = math.inf

    def wait_writable(self) -> None:
        """Wait until all ranks have used what lies in ``tensors``.

        With a round of gradients in between they have; an exchange may also be asked for.
        """
        limit = self._done + 1 - len(self._sets)
        if limit > 0:
            self._memory.rendezvous.wait(RELEASED, limit)

    def publish(self) -> None:
        """Say that the move is there."""
        self._memory.rendezvous.raise_to(PUBLISHED, self._done + 1)

    def receive(self) -> None:
        """Wait for the move."""
        meeting, number = self._memory.rendezvous, self._done + 1

        def is_published() -> bool:
            # Looked at first: a root tells the move before it begins what comes next.
            skipped = [] if self._mean is None else self._mean.skipped()
            told = meeting.counters(PUBLISHED)[0] >= number
            if skipped and not told and self._mean is not None:
                self._mean.rendezvous.give_up_skipped(skipped)
            return told

        meeting.wait_until(is_published, lambda rank: rank == 0 and not is_published())

    def release(self) -> None:
        """Say that the root may write there again."""
        self._done += 1
        self._memory.rendezvous.raise_to(RELEASED, self._done)

    def close(self) -> None:
        """Leave the memory."""
        self._memory.close()


class MessageBroadcast(NoBroadcast):
    """The moves of ranks that have no memory in common, and learn in the step who steps."""

    def announce_due(self) -> None:
        """Return: ranks that only follow learn it as all meet in the step."""

    def is_due(self) -> bool:
        """Return False, likewise."""
        return False

    def disable_timeout(self) -> None:
        """Return: the limit of what is sent is the group's."""


class BoxBroadcast(MessageBroadcast):
    """The root puts the move to the memory node of its group.

    Args:
        group: of the ranks.
        name: of what is moved.
        flat: what is moved.
    """

    def __init__(self, group: BoxGroup, name: str, flat: Sequence[FlatBuffer]) -> None:
        super().__init__(flat)
        self._relay = Relay(group, name, self.tensors)

    def receive(self) -> None:
        """Put the move, or get it when the root has."""
        self._relay.pass_on(self.tensors)

    def close(self) -> None:
        """Leave; the box is the caller's."""


class TorchBroadcast(MessageBroadcast):
    """The root broadcasts the move to its ``torch.distributed`` group.

    Args:
        group: of the ranks; NCCL's moves it between GPUs.
        flat: what is moved.
        timeout_s: until a broadcast is given up, in seconds.
    """

    def __init__(
        self, group: dist.ProcessGroup, flat: Sequence[FlatBuffer], timeout_s: float
    ) -> None:
        super().__init__(flat)
        self._group = group
        self._timeout = timedelta(seconds=timeout_s)
        self._is_root = dist.get_rank(group) == 0
        # What a group sends lies where its parameters are; on the CPU that is the same memory.
        self._sent = [
            told if buffer.wide.device.type == "cpu" else torch.empty_like(buffer.wide)
            for told, buffer in zip(self.tensors, flat, strict=True)
        ]

    def receive(self) -> None:
        """Broadcast the move, or receive it; ``publish`` cannot, on a thread of its own.

        Collectives of a group happen in one order on all ranks, so one thread begins them.
        """
        for told, sent in zip(self.tensors, self._sent, strict=True):
            if self._is_root and sent is not told:
                sent.copy_(told)
            self._broadcast(sent)
            if not self._is_root and sent is not told:
                told.copy_(sent)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        with group_errors():
            work = dist.broadcast(
                tensor, root_of(self._group), group=self._group, async_op=True
            )
            work.wait(self._timeout)

    def close(self) -> None:
        """Leave; the group is the caller's.

        Nothing may hold a group that has been destroyed: torch can abort as the process ends.
        """
        self.__dict__.pop("_group", None)


def _nbytes(buffer: FlatBuffer) -> int:
    return align(buffer.wide.nbytes, ALIGN_NBYTES)


def open_broadcast(
    group: AnyGroup | None,
    name: str,
    world: World,
    flat: Sequence[FlatBuffer],
    timeout_s: float,
    *,
    mean: HostMean | None,
    is_hidden: bool = False,
) -> GroupBroadcast:
    """Open the way of the moves from the root to all ranks of a group, or of this host.

    A hidden exchange may begin as soon as the root has used the move of the last one (at period
    1 it does), and the others may still be reading that. Written to the other of two sets it
    need not wait for them.
    """
    if isinstance(group, BoxGroup):
        return BoxBroadcast(group, name, flat)
    if group is not None:
        return TorchBroadcast(group, flat, timeout_s)
    return HostBroadcast(name, world, flat, timeout_s, sets=2 if is_hidden else 1, mean=mean)
