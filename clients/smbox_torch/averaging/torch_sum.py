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
from smbox_torch.averaging.summed_mean import AllReduceSum

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


class TorchSum(AllReduceSum):
    """One rank's part of the sums.

    Args:
        group: process group of the ranks.
        device: device of the summed tensors.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._group = group
        self._device = device

    def _add(self, tensor: torch.Tensor) -> None:
        near = tensor.to(self._device)
        with group_errors():
            dist.all_reduce(near, group=self._group)
        if near is not tensor:
            tensor.copy_(near)

    def share(self, state: torch.Tensor, source: int) -> None:
        """Broadcast the state of rank ``source``."""
        with group_errors():
            dist.broadcast(state, dist.get_global_rank(self._group, source), group=self._group)

    def nbytes(self, flats: Sequence[torch.Tensor]) -> int:
        """Return the bytes of an all-reduce: each rank sends and receives its array once."""
        return 2 * sum(flat.nbytes for flat in flats)

    def close(self, *, steps: int | None) -> None:  # noqa: ARG002 - a group cannot report it
        """Release the reference to the group, which the caller owns.

        A reference to a destroyed group can make torch abort when the process ends.
        """
        self.__dict__.pop("_group", None)
