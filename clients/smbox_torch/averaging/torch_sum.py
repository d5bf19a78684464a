"""Sums over the ranks of a ``torch.distributed`` group: NCCL's, Gloo's or MPI's collectives.

All ranks must make the same calls in the same order. An error of the group (a rank is gone) is
raised as WorkerLostError; the group cannot be used afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from smbox.errors import WorkerLostError
from smbox_torch.averaging.packed import Packed, packed_nbytes

__all__ = ["TorchSum", "group_errors", "root_of"]


def root_of(group: dist.ProcessGroup) -> int:
    """Return the global rank of a group's first rank, its root."""
    return dist.get_global_rank(group, 0)


@contextmanager
def group_errors() -> Iterator[None]:
    """Convert errors of collectives to WorkerLostError."""
    try:
        yield
    except RuntimeError as error:
        raise WorkerLostError(
            "a rank of the process group is gone: it died, or it finished with fewer batches"
            " than the others; give all equally many, or put each rank's loop inside `with"
            " optimizer.join():`",
            reason=str(error).partition("\n")[0],
        ) from error


class TorchSum:
    """One rank's part of the sums.

    Args:
        group: process group of the ranks.
        device: device of the summed tensors.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._device = device
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def table(
        self,
        row: torch.Tensor,
        flats: Sequence[torch.Tensor],  # noqa: ARG002 - `total` sums them
        state: torch.Tensor,  # noqa: ARG002 - `share` sends it
    ) -> torch.Tensor:
        """Sum the ranks' tables; each rank has filled only its own row."""
        table = row.new_zeros((self.size, len(row)))
        table[self.rank] = row
        near = table.to(self._device)
        with group_errors():
            dist.all_reduce(near, group=self._group)
        return near.cpu()

    def total(self, flats: Sequence[torch.Tensor], weight: float) -> None:
        """Sum the gradients, with one all-reduce per dtype."""
        for flat in flats:
            if weight == 0.0:
                flat.zero_()  # without a batch it may hold any values, even NaN
            elif weight != 1.0:
                flat.mul_(weight)
            with group_errors():
                dist.all_reduce(flat, group=self._group)

    def share(self, state: torch.Tensor, source: int) -> None:
        """Broadcast the state of rank ``source``."""
        with group_errors():
            dist.broadcast(state, dist.get_global_rank(self._group, source), group=self._group)

    def begin_alike(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the tensors of the first rank to every rank."""
        nbytes = packed_nbytes(tensors)
        packed = Packed(tensors, torch.zeros(nbytes, dtype=torch.uint8, device=self._device))
        packed.store()
        self.share(packed.memory, 0)
        packed.load()

    def nbytes(self, flats: Sequence[torch.Tensor]) -> int:
        """Return the bytes of an all-reduce: each rank sends and receives its array once."""
        return 2 * sum(flat.nbytes for flat in flats)

    def close(self, *, steps: int | None) -> None:  # noqa: ARG002 - a group cannot report it
        """Release the reference to the group, which the caller owns.

        A reference to a destroyed group can make torch abort when the process ends.
        """
        self.__dict__.pop("_group", None)
