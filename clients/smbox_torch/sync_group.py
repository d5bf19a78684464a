"""Synchronous SGD among the workers of one host, through memory they share.

The inner half of ShmCaffe-H (ICDCS 2018): the workers of a host compute the gradients of
their own batches, and every one of them steps with the mean. g_i the gradient of worker i at
the common x, w_i its weight (1 unless told otherwise), f the step of the optimizer inside:

    g = sum_i(w_i * g_i) / sum_i(w_i);    x = f(x, g)           on every worker alike

The paper's workers use NCCL; here the mean is a reduce-scatter and all-gather in mapped
memory (``gradient_sync``), without messages and without a memory node. One worker computes
each part of the mean, so all workers hold the same bits at every step. With ``group=`` the mean
is a ``torch.distributed`` group's instead (``torch_sync``), NCCL's for one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.flat import unique
from smbox_torch.gradient_sync import WRITTEN, GradientSync
from smbox_torch.publisher import PUBLISHED, share
from smbox_torch.stats import Stats
from smbox_torch.torch_sync import TorchSync
from smbox_torch.world import World
from smbox_torch.wrapped import WrappedOptimizer

__all__ = ["SyncGroup"]

BUCKET_NBYTES: Final = 4 << 20
TIMEOUT_S: Final = 300.0
"""A rank may be busy elsewhere, evaluating or saving; one that died is noticed at once."""


def world_or_default(world: World | None) -> World:
    """Return the world as given, else the one that the environment tells."""
    return World.from_env(os.environ) if world is None else world


class SyncGroup(WrappedOptimizer):
    """An optimizer that steps with the mean gradient of all workers of this host.

    After ``backward`` the gradients are the mean already, so clipping and gradient scaling
    work as in a run of one worker. Parameters, also frozen ones, and buffers begin as those of
    local rank 0; after every step buffers are those of the first rank that had a batch.

    ``step`` raises WorkerLostError where a rank died, left or did not come; the parameters are
    then as before it. ``state_dict`` is the same on every rank, and every rank loads it.

    Args:
        optimizer: does the steps; its parameters that require gradients are kept in step.
        model: also keep its buffers in step (batch norm).
        world: who this process is; None: torchrun's variables.
        name: of the shared memory; a run with several groups at once names each.
        bucket_nbytes: most bytes of gradients that are announced at once.
        timeout_s: until a living rank that does not answer is given up, in seconds.
        group: average over this group, on one host or several, when ``step`` or
            ``synchronize`` is called; then only ``model`` counts of the arguments above.

    Raises:
        ConfigError: the ranks' models differ, or a parameter has no mean; nothing is left.
        WorkerLostError: a rank never came; nothing is left.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None = None,
        *,
        world: World | None = None,
        name: str = "sync",
        bucket_nbytes: int = BUCKET_NBYTES,
        timeout_s: float = TIMEOUT_S,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(optimizer)
        self.world = world_or_default(world)
        members = unique(p for each in optimizer.param_groups for p in each["params"])
        parameters = [p for p in members if p.requires_grad]
        self._frozen = [p for p in members if not p.requires_grad]
        buffers = unique(model.buffers()) if model is not None else []
        self._sync: GradientSync | TorchSync
        if group is not None:
            self._sync = TorchSync(parameters, buffers, group, frozen=self._frozen)
        else:
            self._sync = GradientSync(
                parameters,
                buffers,
                self.world,
                name=name,
                bucket_nbytes=bucket_nbytes,
                timeout_s=timeout_s,
            )
            try:
                share(self._frozen, self.world, f"{name}-frozen", timeout_s)
            except BaseException:
                self._sync.close()
                raise
        self._joins = 0
        self._remember()

    @property
    def weight(self) -> float:
        """How much this rank's next gradients count; with a mean loss, its batch size."""
        return self._sync.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if not 0.0 < weight < math.inf:
            raise ConfigError("a weight is a number above zero", weight=weight)
        self._sync.weight = float(weight)

    def _advance(self) -> None:
        self.synchronize()
        self._step()

    def synchronize(self) -> None:
        """Make the gradients the mean now, if backward has not (it had nothing to do here).

        Raises:
            WorkerLostError: a rank died, left or did not come; gradients are undefined.
            ConfigError: a parameter was unfrozen after the group was made; nothing happened.
        """
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ConfigError(
                "a parameter that was frozen when the group was made has no place in its mean:"
                " unfreeze first, then make the group"
            )
        if not self._sync.is_synced:
            self._sync.finish()

    def _step(self) -> None:
        """Step with the gradients as they are; all ranks do it."""
        self.inner.step()
        self._sync.recorder.steps += 1
        self._sync.is_synced = False
        self._sync.publish()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up locally; the first backward outside averages the sums."""
        before, self._sync.enabled = self._sync.enabled, False
        try:
            yield
        finally:
            self._sync.enabled = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let ranks run out of batches at different times.

        A rank that is through its loop follows the others' steps with weight 0 until all are
        through, so all end with the same parameters. Every rank's loop must be inside.

        Raises:
            ConfigError: the group is not one of shared memory; nothing happened.
            WorkerLostError: a rank died, left or did not come.
        """
        sync = self._sync
        if not isinstance(sync, GradientSync):
            raise ConfigError("only ranks that share memory can follow; leave out group=")
        yield
        self._joins += 1
        sync.rows.joined[sync.rank] = self._joins
        weight, sync.weight = sync.weight, 0.0
        try:
            self._follow(sync)
        finally:
            sync.weight = weight

    def _follow(self, sync: GradientSync) -> None:
        """Do what the others do, until all ranks have joined."""
        meeting, joined = sync.rendezvous, sync.rows.joined

        def leads(lane: int) -> bool:
            counters = meeting.counters(lane)
            return max(counters) > counters[sync.rank]

        while True:
            meeting.wait_until(
                lambda: (
                    leads(PUBLISHED)
                    or self._is_awaited()
                    or leads(WRITTEN)
                    or bool((joined >= self._joins).all())
                ),
                lambda rank: bool(joined[rank] < self._joins),
            )
            if leads(PUBLISHED) or self._is_awaited():
                self._step()
                continue
            writes = leads(WRITTEN)
            if (joined >= self._joins).all():
                return  # whoever leads has begun what comes after; it cannot step without me
            if writes:
                sync.finish()

    def _is_awaited(self) -> bool:
        """Tell whether another rank is in the middle of a step that needs this one."""
        return False

    def stats(self) -> Stats:
        """Return what was counted: rounds of averaging as exchanges, waiting, bytes."""
        return self._sync.recorder.snapshot()

    def close(self) -> None:
        """Leave the group; a rank that still steps learns it by WorkerLostError."""
        self._sync.close()
