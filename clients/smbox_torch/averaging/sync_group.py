"""Synchronous SGD among the workers of one host, through memory they share.

The inner half of ShmCaffe-H (ICDCS 2018): the workers of a host compute the gradients of
their own batches, and every one of them steps with the mean. g_i the gradient of worker i at
the common x, w_i its weight (1 unless told otherwise), f the step of the optimizer inside:

    g = sum_i(w_i * g_i) / sum_i(w_i);    x = f(x, g)           on every worker alike

The paper's workers use NCCL; here the mean is a reduce-scatter and all-gather in mapped
memory (``host_mean``), without messages and without a memory node. One worker computes
each part of the mean, so all workers hold the same bits at every step. With ``group=`` the mean
is a ``torch.distributed`` group's instead (``torch_sum``), NCCL's for one, or that of workers
who meet at a memory node (``box_group``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist

from smbox.head import check_prefix
from smbox_torch.averaging.box_group import AnyGroup, BoxGroup
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.averaging.host_mean import HostMean
from smbox_torch.averaging.mean import Mean, averaged
from smbox_torch.averaging.optimizer import AveragingOptimizer
from smbox_torch.averaging.packed import share
from smbox_torch.averaging.summed_mean import SummedMean, check_same_layout
from smbox_torch.averaging.torch_sum import TorchSum
from smbox_torch.checks import seconds, whole
from smbox_torch.model.flat import unique
from smbox_torch.world import World, world_or_launched

__all__ = ["SyncGroup"]

BUCKET_NBYTES: Final = 4 << 20
TIMEOUT_S: Final = 300.0
"""A rank may be busy elsewhere, evaluating or saving; one that died is noticed at once."""


def check_timing(bucket_nbytes: int, timeout_s: float) -> None:
    """Raise TypeError or ConfigError where there is no such bucket or time."""
    whole("bucket_nbytes", bucket_nbytes)
    seconds("timeout_s", timeout_s)


class SyncGroup(AveragingOptimizer):
    """An optimizer that steps with the mean gradient of all workers of this host.

    Parameters, also frozen ones, and buffers begin as those of local rank 0; with ``model``
    buffers are, after every backward, those of the first rank that had a batch.

    ``step`` raises WorkerLostError where a rank died, left or did not come; the parameters are
    then as before it.

    Args:
        optimizer: does the steps; its parameters that require gradients are kept in step.
        model: also keep its buffers in step (batch norm).
        world: who this process is; None: as the launcher tells.
        name: of the shared memory; a run with several groups at once names each.
        bucket_nbytes: most bytes of gradients that are announced at once.
        timeout_s: until a living rank that does not answer is given up, in seconds.
        group: average over this process group or BoxGroup, on one host or several, at the end
            of backward; then only ``model`` counts of the arguments above.

    Raises:
        TypeError, LimitError: no run can have this name; nothing was made.
        ConfigError: nobody says who this process is, the ranks' models differ, or a parameter
            has no mean; nothing is left.
        WorkerLostError: a rank never came; nothing is left.
    """

    _told: Sequence[torch.Tensor] = ()
    """What else all ranks learn from the first one at the beginning."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None = None,
        *,
        world: World | None = None,
        name: str = "sync",
        bucket_nbytes: int = BUCKET_NBYTES,
        timeout_s: float = TIMEOUT_S,
        group: AnyGroup | None = None,
    ) -> None:
        check_prefix(name)
        check_timing(bucket_nbytes, timeout_s)
        own = None if isinstance(group, BoxGroup) else group
        super().__init__(optimizer, model=model, group=own)
        self._model = model
        self.world = world_or_launched(world, group)
        self.rank, self.workers = self.world.rank, self.world.world_size
        if group is not None and not isinstance(group, BoxGroup):
            self.rank, self.workers = dist.get_rank(), dist.get_world_size()
        parameters, self._frozen = averaged(optimizer)
        buffers = [] if model is None else unique(model.buffers())
        alike = [*parameters, *self._frozen, *buffers, *self._told]
        mean: Mean
        self._host_mean: HostMean | None = None
        if isinstance(group, BoxGroup):
            group.begin_alike(alike)
            mean = SummedMean(parameters, buffers, group.sums(parameters, buffers))
        elif group is not None:
            by = TorchSum(group, parameters[0].device)
            mean = SummedMean(parameters, buffers, by)
            check_same_layout(alike, by)
            by.begin_alike(alike)
        else:
            mean = self._host_mean = HostMean(
                parameters,
                buffers,
                self.world,
                name=name,
                bucket_nbytes=bucket_nbytes,
                timeout_s=timeout_s,
            )
            self._host_mean = mean
            try:
                share(alike, self.world, f"{name}-begin", timeout_s)
            except BaseException:
                mean.close(steps=None)
                raise
        self._rounds = GradientRounds(parameters, mean, optimizer, model=model)
        self._remember()
