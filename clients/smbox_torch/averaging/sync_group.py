"""Synchronous SGD among the workers of one host, through memory they share.

This is the synchronous part of ShmCaffe-H (ICDCS 2018): the workers of a host compute the
gradients of their own batches, and each worker steps with the mean. g_i the gradient of worker
i at the common x, w_i its weight (default 1), f the step of the inner optimizer:

    g = sum_i(w_i * g_i) / sum_i(w_i);    x = f(x, g)           on every worker

The paper's workers use NCCL. Here the mean is a reduce-scatter and all-gather in mapped memory
(``host_mean``), without messages and without a memory node. One worker computes each part of
the mean, so all workers have bit-identical values at every step. With ``group=`` the mean is
computed by a ``torch.distributed`` group (``torch_sum``), such as NCCL's, or at a memory node
(``box_group``).
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
from smbox_torch.averaging.mean import Mean, averaged, buffers_of
from smbox_torch.averaging.optimizer import AveragingOptimizer
from smbox_torch.averaging.packed import share
from smbox_torch.averaging.summed_mean import SummedMean
from smbox_torch.averaging.torch_sum import TorchSum
from smbox_torch.checks import seconds, whole
from smbox_torch.model.others import other_parameters
from smbox_torch.world import World, world_or_launched

__all__ = ["SyncGroup"]

BUCKET_NBYTES: Final = 4 << 20
TIMEOUT_S: Final = 300.0
"""A rank may be busy with an evaluation or a save. A dead rank is detected at once."""


def check_timing(bucket_nbytes: int, timeout_s: float) -> None:
    """Raise TypeError or ConfigError if an argument is invalid."""
    whole("bucket_nbytes", bucket_nbytes)
    seconds("timeout_s", timeout_s)


class SyncGroup(AveragingOptimizer):
    """Synchronous SGD: steps with the mean gradient of all workers of this host.

    All ranks start with the parameters of local rank 0: those of the optimizer, and with
    ``model`` also the model's other parameters and its buffers. With ``model``, all ranks have
    the buffers of the first rank with a batch after every backward.

    ``step`` raises WorkerLostError if a rank died, left or did not arrive; the parameters are
    then unchanged.

    Args:
        optimizer: the inner optimizer; it does the steps. The gradients of its parameters that
            require gradients are averaged.
        model: also keep the buffers (batch norm) of this model equal on all ranks.
        world: rank and size of this process; None: as set by the launcher.
        name: name of the shared memory; several groups of one run at a time need different
            names.
        bucket_nbytes: largest number of bytes of gradients that are averaged at once.
        timeout_s: time after which a live rank that does not respond is considered lost, in
            seconds.
        group: average over this process group or BoxGroup, on one host or several, at the end
            of backward. Then only ``optimizer`` and ``model`` of the arguments above are used.

    Raises:
        TypeError, LimitError: the name is invalid; nothing was created.
        ConfigError: rank and size of this process are unknown, the ranks' models differ, or a
            parameter cannot be averaged; created memory was removed.
        WorkerLostError: a rank never arrived; created memory was removed.
    """

    _told: Sequence[torch.Tensor] = ()
    """More tensors that all ranks get from the first rank at the start."""

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
        if own is not None:
            self.rank, self.workers = dist.get_rank(), dist.get_world_size()
        parameters, self._frozen = averaged(optimizer)
        buffers = buffers_of(model)
        others = other_parameters(model, self._wrapped)
        alike = [*parameters, *self._frozen, *others, *buffers, *self._told]
        mean: Mean
        self._host_mean: HostMean | None = None
        if isinstance(group, BoxGroup):
            group.begin_alike(alike)
            mean = SummedMean(parameters, buffers, group.sums(parameters, buffers))
        elif group is not None:
            by = TorchSum(group, parameters[0].device)
            mean = SummedMean(parameters, buffers, by)
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
            try:
                share(alike, self.world, f"{name}-begin", timeout_s)
            except BaseException:
                mean.close(steps=None)
                raise
        self._rounds = GradientRounds(parameters, mean, optimizer, model=model)
        self._remember()
