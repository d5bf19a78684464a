"""Broadcasts of a group's move: by shared memory, a collective operation, or a node.

The root writes the move that the memory returned to ``tensors`` and calls ``publish``. Then
every rank, including the root, calls ``receive``, reads ``tensors``, and calls ``release``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from itertools import cycle
from typing import Final, Protocol

import torch
import torch.distributed as dist

from smbox_torch.adapter import as_array, dtype_name
from smbox_torch.averaging.box_group import AnyGroup, BoxGroup
from smbox_torch.averaging.host_mean import HostMean
from smbox_torch.averaging.host_memory import HostMemory
from smbox_torch.averaging.packed import packed_nbytes, places
from smbox_torch.averaging.torch_sum import group_errors, root_of
from smbox_torch.elastic.overlap import Broadcast, NoBroadcast
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.world import World

__all__ = [
    "BoxBroadcast",
    "GroupBroadcast",
    "HostBroadcast",
    "TorchBroadcast",
    "open_broadcast",
]

TURNS: Final = 2
"""Sets of regions of a broadcast by a node."""

# Counters of the rendezvous: numbers of exchanges.
PUBLISHED = 0  # whose move the root has written
RELEASED = 1  # whose move this rank has read
DUE = 2  # that a step of this rank has reached


class GroupBroadcast(Broadcast, Protocol):
    """A broadcast within a group, on one of its ranks."""

    def announce_due(self) -> None:
        """Announce that this rank's step has reached an exchange."""

    def is_due(self) -> bool:
        """Return True if a step of another rank, but not of this one, reached an exchange."""

    def announce_end(self, steps: int) -> None:
        """Tell ranks that have more batches that this one has ended after ``steps`` steps."""

    def disable_timeout(self) -> None:
        """Wait without limit for the next move, the last: the root waits for other groups."""

    def close(self) -> None:
        """Leave the group."""


class HostBroadcast:
    """A broadcast in shared memory: the root writes the move to memory of the host's ranks.

    Args:
        name: name of the memory.
        world: rank and size of this process.
        flat: the buffers that are moved; of the same sizes on every rank.
        timeout_s: time after which a rank that does not respond is considered lost, in seconds.
        sets: number of sets of tensors that exchanges use in turn.
        mean: the mean of the ranks' gradients, in which ranks wait for each other, too.

    Raises:
        WorkerLostError: a rank of this host never arrived. From ``receive``: the root is lost.
            From ``wait_writable``: a rank is lost.
        StepMismatchError: from ``receive``: the root skipped the step.
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
        moved = [buffer.wide for buffer in flat]
        nbytes = packed_nbytes(moved)
        self._memory = HostMemory.join(name, world, sets * nbytes, timeout_s=timeout_s)
        self._done = 0
        data = torch.from_numpy(self._memory.data)
        self._sets = [places(moved, data[turn * nbytes :]) for turn in range(sets)]

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The set of the next exchange, or of the one in flight."""
        return self._sets[self._done % len(self._sets)]

    def announce_due(self) -> None:
        """Announce the exchange to ranks that have no batches left."""
        self._memory.rendezvous.raise_to(DUE, self._done + 1)

    def is_due(self) -> bool:
        """Compare the counters of the other ranks with this one's."""
        counters = self._memory.rendezvous.counters(DUE)
        return max(counters) > max(self._done, counters[self._memory.rendezvous.rank])

    def announce_end(self, steps: int) -> None:
        """Announce the end of the loop to ranks that wait for this one's gradients."""
        if self._mean is not None:
            self._mean.rendezvous.leave(steps=steps)

    def disable_timeout(self) -> None:
        """Wait for the root as long as it is alive."""
        self._memory.rendezvous.timeout_s = math.inf

    def wait_writable(self) -> None:
        """Wait until all ranks have released ``tensors``.

        After a round of gradients they have; a caller may also request an extra exchange.
        """
        limit = self._done + 1 - len(self._sets)
        if limit > 0:
            self._memory.rendezvous.wait(RELEASED, limit)

    def publish(self) -> None:
        """Announce that the move is written."""
        self._memory.rendezvous.raise_to(PUBLISHED, self._done + 1)

    def receive(self) -> None:
        """Wait for the move."""
        meeting, number = self._memory.rendezvous, self._done + 1

        def is_published() -> bool:
            # Read this first: the root publishes the move before it begins the next round.
            skipped = [] if self._mean is None else self._mean.skipped()
            is_published = meeting.counters(PUBLISHED)[0] >= number
            if skipped and not is_published and self._mean is not None:
                self._mean.rendezvous.give_up_skipped(skipped)
            return is_published

        meeting.wait_until(is_published, lambda rank: rank == 0 and not is_published())

    def release(self) -> None:
        """Announce that the root may overwrite the tensors."""
        self._done += 1
        self._memory.rendezvous.raise_to(RELEASED, self._done)

    def close(self) -> None:
        """Leave the memory."""
        self._memory.close()


class MessageBroadcast(NoBroadcast):
    """Base of broadcasts between ranks without shared memory; they synchronize in each step."""

    def announce_due(self) -> None:
        """Return: all ranks synchronize in the step, also those without batches."""

    def is_due(self) -> bool:
        """Return False, for the same reason."""
        return False


class BoxBroadcast(MessageBroadcast):
    """A broadcast by the memory node of the group: the root puts, and the others get.

    Two sets of regions are used in turn. Before the root overwrites a set, all ranks have met
    after reading it: they meet in every turn.

    Args:
        group: the group of ranks.
        name: name of the broadcast, unique in the group.
        flat: the buffers that are moved; of the same sizes on every rank.

    Raises:
        LayoutMismatchError: a broadcast of this name has other buffers.
        RequestTimeoutError, WorkerLostError: from ``receive``; ``tensors`` are undefined.
    """

    def __init__(self, group: BoxGroup, name: str, flat: Sequence[FlatBuffer]) -> None:
        super().__init__(flat)
        self._group = group
        self._name = name
        regions = [
            [
                group.box.create(
                    f"{group.name}.{name}.{turn}.{number}",
                    tuple(each.shape),
                    dtype_name(each.dtype),
                    exist_ok=True,
                )
                for number, each in enumerate(self.tensors)
            ]
            for turn in range(TURNS)
        ]
        self._turns = cycle(regions)

    def receive(self) -> None:
        """Root: put the move. Others: get it after the root has put it."""
        regions = next(self._turns)
        if self._group.rank == 0:
            for region, tensor in zip(regions, self.tensors, strict=True):
                region.put(as_array(tensor))
        self._group.meet(self._name)
        if self._group.rank != 0:
            for region, tensor in zip(regions, self.tensors, strict=True):
                region.get(as_array(tensor))

    def announce_end(self, steps: int) -> None:
        """Announce the end of the loop to ranks that wait for this one's gradients."""
        self._group.tell_end(steps)

    def disable_timeout(self) -> None:
        """Wait for the root as long as it is alive."""
        self._group.disable_timeout()

    def close(self) -> None:
        """Return: the caller owns the box."""


class TorchBroadcast(MessageBroadcast):
    """A broadcast in a ``torch.distributed`` group.

    Args:
        group: the group of ranks; NCCL transfers between GPUs.
        flat: the buffers that are moved.
        timeout_s: timeout of a broadcast, in seconds.
    """

    def __init__(
        self, group: dist.ProcessGroup, flat: Sequence[FlatBuffer], timeout_s: float
    ) -> None:
        super().__init__(flat)
        self._group = group
        self._timeout = timedelta(seconds=timeout_s)
        self._is_root = dist.get_rank(group) == 0
        # A group sends from the parameters' device; on the CPU that is the same memory.
        self._sent = [
            tensor if buffer.wide.device.type == "cpu" else torch.empty_like(buffer.wide)
            for tensor, buffer in zip(self.tensors, flat, strict=True)
        ]

    def receive(self) -> None:
        """Root: broadcast the move. Others: receive it.

        Collective operations of a group must have the same order on all ranks. Therefore one
        thread begins them all, and ``publish``, on the update thread, does nothing.
        """
        for tensor, sent in zip(self.tensors, self._sent, strict=True):
            if self._is_root and sent is not tensor:
                sent.copy_(tensor)
            self._broadcast(sent)
            if not self._is_root and sent is not tensor:
                tensor.copy_(sent)

    def announce_end(self, steps: int) -> None:
        """Return: a process group cannot report it."""

    def disable_timeout(self) -> None:
        """Return: the timeout is that of the group."""

    def _broadcast(self, tensor: torch.Tensor) -> None:
        with group_errors():
            work = dist.broadcast(
                tensor, root_of(self._group), group=self._group, async_op=True
            )
            work.wait(self._timeout)

    def close(self) -> None:
        """Drop the group: torch may abort at exit if a destroyed group is still referenced."""
        self.__dict__.pop("_group", None)


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
    """Open the broadcast of moves from the root to all ranks of a group, or of this host.

    An overlapped exchange may begin as soon as the root has released the last move (with period
    1 it does), while other ranks still read that move. It writes to the other of two sets, so
    that it does not wait for them.
    """
    if isinstance(group, BoxGroup):
        return BoxBroadcast(group, name, flat)
    if group is not None:
        return TorchBroadcast(group, flat, timeout_s)
    return HostBroadcast(name, world, flat, timeout_s, sets=2 if is_hidden else 1, mean=mean)
