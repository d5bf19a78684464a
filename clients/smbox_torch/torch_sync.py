"""Gradients of the ranks of a ``torch.distributed`` group replaced by their mean.

What ``gradient_sync`` does for the ranks of a host through shared memory, by the collectives
of any process group: NCCL's for GPUs, Gloo's or MPI's for CPUs, on one host or several. One
all-reduce per dtype after backward, without overlap.

All ranks call the same things in the same order; an error of the group (a rank that is gone)
is raised as torch raises it, and ends the group.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.buckets import LOW_PRECISION
from smbox_torch.stats import Recorder

__all__ = ["TorchSync", "root_of"]


def root_of(group: dist.ProcessGroup) -> int:
    """Return the global rank of a group's first rank, its root."""
    return dist.get_global_rank(group, 0)


class TorchSync:
    """Keeps the gradients of one rank's parameters equal to the mean over a group.

    Args:
        parameters: those that require gradients; the same on every rank.
        buffers: what ``publish`` sends; the same on every rank.
        group: of the ranks.
        frozen: begin as the root's, too.

    Attributes:
        weight: how much this rank's next gradients count.
        enabled: False while gradients are to add up locally.
        is_synced: whether the gradients are the mean already.
        recorder: counts rounds of averaging.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        group: dist.ProcessGroup,
        *,
        frozen: Sequence[torch.Tensor] = (),
    ) -> None:
        if not parameters or any(not each.dtype.is_floating_point for each in parameters):
            raise ConfigError("only floating-point parameters have a mean")
        self._parameters = list(parameters)
        self._buffers = list(buffers)
        self._group = group
        self.rank = dist.get_rank(group)
        self.weight = 1.0
        self.enabled = True
        self.is_synced = False
        self.recorder = Recorder()
        self._broadcast([*self._parameters, *frozen, *self._buffers])

    @torch.no_grad()
    def finish(self) -> None:
        """Replace every gradient by the weighted mean; None where no rank has one."""
        began_s = time.monotonic()
        total, is_used = self._count()
        for dtype in dict.fromkeys(each.dtype for each in self._parameters):
            self._average([each for each in self._parameters if each.dtype == dtype], total)
        for parameter, used in zip(self._parameters, is_used, strict=True):
            if not used:
                parameter.grad = None
        self.is_synced = True
        took_s = time.monotonic() - began_s
        nbytes = sum(parameter.nbytes for parameter in self._parameters)
        self.recorder.exchange(took_s=took_s, nbytes=2 * nbytes)
        self.recorder.waited(took_s)

    def _count(self) -> tuple[float, list[bool]]:
        """Return the sum of weights, and which parameters have a gradient anywhere."""
        has = [self.weight if each.grad is not None else 0.0 for each in self._parameters]
        counts = torch.tensor(
            [self.weight, *has], dtype=torch.float64, device=self._parameters[0].device
        )
        dist.all_reduce(counts, group=self._group)
        total, *users = counts.tolist()
        return total, [user > 0 for user in users]

    def _average(self, parameters: Sequence[torch.Tensor], total: float) -> None:
        """Average the gradients of one dtype; 16 bits are summed in 32."""
        dtype = parameters[0].dtype
        wide = torch.float32 if dtype in LOW_PRECISION else dtype
        flat = torch.cat([_gradient(parameter).to(wide) for parameter in parameters])
        flat.mul_(self.weight)
        dist.all_reduce(flat, group=self._group)
        flat.div_(total)
        means = torch.split(flat, [each.numel() for each in parameters])
        for parameter, mean in zip(parameters, means, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(mean.view(parameter.shape))

    def publish(self) -> None:
        """Give every rank the buffers of the root."""
        self._broadcast(self._buffers)

    @torch.no_grad()
    def _broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, root_of(self._group), group=self._group)
            tensor.copy_(whole)

    def close(self) -> None:
        """Leave; the group is the caller's.

        Nothing may hold a group that has been destroyed: torch can abort as the process ends.
        """
        self.__dict__.pop("_group", None)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient as ``[n]``; zeros where it has none."""
    if parameter.grad is None:
        return torch.zeros_like(parameter).view(-1)
    if parameter.grad.is_sparse:
        raise ConfigError("sparse gradients have no flat mean; use sparse=False")
    return parameter.grad.reshape(-1)
