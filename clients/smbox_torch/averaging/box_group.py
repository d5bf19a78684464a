"""A group of workers on several hosts that communicates through one memory node.

The workers of one host use mapped memory; this group uses regions of the node. They hold the
sums of gradients (``box_sum``), the initial values of all workers, and the moves of the root
(``hybrid/broadcast.py``).

    NAME.alike             i64[size]: a digest of each worker's shapes and dtypes
    NAME.begin             u8[...]: the root's initial values, freed after all have read them
    NAME.MOVE.TURN.N       tensor N of the root's move; two turns, so the root need not wait
    NAME.gradient..., NAME.rows..., NAME.state...    see ``box_sum``
    NAME.members           its workers, who tell each other that they live
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from smbox import Box
from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.averaging.box_sum import BoxSum
from smbox_torch.averaging.buckets import described
from smbox_torch.averaging.packed import Packed, packed_nbytes
from smbox_torch.workers.joining import team_of

__all__ = ["AnyGroup", "BoxGroup"]


class BoxGroup:
    """One worker's place in the group.

    Args:
        box: a box on the memory node of the group.
        name: prefix of its regions, unique among groups.
        ranks: ranks of its workers in the run; the first is the root.
        rank: rank of this worker in the run.
        timeout_s: longest wait for the slowest worker, in seconds.

    Attributes:
        rank: rank of this worker in the group; 0 is the root.
        size: number of workers.

    Raises:
        ConfigError: this worker is not in the group.
    """

    def __init__(
        self, box: Box, name: str, ranks: Sequence[int], rank: int, *, timeout_s: float
    ) -> None:
        if rank not in ranks:
            raise ConfigError("this worker is not in the group", rank=rank, ranks=list(ranks))
        self.box = box
        self.name = name
        self.rank, self.size = ranks.index(rank), len(ranks)
        self._ranks = tuple(ranks)
        self._timeout_s = timeout_s

    def begin_alike(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the tensors of the root to every worker.

        Raises:
            ConfigError: on all workers, if some shapes or dtypes differ; nothing changed.
            RankTakenError: a living process has this worker's rank; nothing changed.
            RequestTimeoutError: a worker did not arrive; the tensors may already be the root's.
            WorkerLostError: a worker died, left or was started again; else as
                RequestTimeoutError.
        """
        self._team = team_of(self.box, self.name, self.size, rank=self.rank)
        try:
            self._begin_alike(tensors)
        except BaseException:
            self._team.leave()
            raise

    def _begin_alike(self, tensors: Sequence[torch.Tensor]) -> None:
        self._sums = GroupSum(  # first: others notice by it that this worker was started again
            self.box, self.name, self._team, timeout_s=self._timeout_s, ranks=self._ranks
        )
        digest = zlib.crc32(described(tensors, (), 0).encode())
        row = self.box.create(f"{self.name}.alike", self.size, "int64", exist_ok=True)
        row[self.rank : self.rank + 1].put(np.array([digest]))
        self._sums.begin("alike")
        digests = row.get().tolist()
        if len(set(digests)) > 1:
            raise ConfigError(
                "the workers' models differ: pass the same model and arguments on all workers",
                ranks=list(self._ranks),
                digests=digests,
            )
        begin = f"{self.name}.begin"
        memory = torch.zeros(packed_nbytes(tensors), dtype=torch.uint8, device="cpu")
        packed = Packed(tensors, memory)
        if self.rank == 0:
            packed.store()
            first = self.box.create(begin, memory.numel(), "uint8", exist_ok=True)
            first.put(as_array(memory))
        self.meet("stored")
        if self.rank != 0:
            self.box.attach(begin).get(as_array(memory))
            packed.load()
        self.meet("taken")
        if self.rank == 0:
            self.box.free(begin)

    def sums(
        self, parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]
    ) -> BoxSum:
        """Return this worker's object for sums of gradients; after ``begin_alike``.

        Raises:
            LayoutMismatchError: regions of this name belong to another model or group; this
                worker has left.
        """
        try:
            self._sums.create(parameters, buffers)
        except BaseException:
            self._sums.close(steps=None)
            raise
        return self._sums

    def tell_end(self, steps: int) -> None:
        """Tell the others that this worker's loop has ended after ``steps`` steps."""
        self._sums.tell_end(steps=steps)

    def disable_timeout(self) -> None:
        """Wait from now on for a worker as long as it is alive."""
        self._sums.timeout_s = math.inf

    def meet(self, what: str) -> None:
        """Wait until all workers of the group have called this; from ``begin_alike`` on.

        Raises:
            RequestTimeoutError: a worker did not.
            WorkerLostError: a worker died, left, or was started again.
        """
        self._sums.meet(what, ended_come=True)


class GroupSum(BoxSum):
    """The sums of a group, which leaves its team with them."""

    def close(self, *, steps: int | None) -> None:
        """Tell the end, and leave."""
        try:
            self.tell_end(steps=steps)
        finally:
            self._team.leave()


AnyGroup = dist.ProcessGroup | BoxGroup
"""The groups of workers that step together, if these are not the ranks of one host."""
