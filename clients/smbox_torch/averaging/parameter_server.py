"""The synchronous parameter server: the memory sums gradients, and all workers read the sum.

Li et al.: Scaling distributed machine learning with the parameter server, OSDI 2014, in the
synchronous form that is usually compared with ring all-reduce. g_i the gradient of worker i
of p at the common x, w_i its weight (default 1), G a region, f the step of the inner optimizer:

    push:  G = G + w_i g_i          (the memory adds; the order of workers is undefined)
    meet
    pull:  x = f(x, G / sum_i(w_i)) (on every worker)

Variant: the memory sums, and the workers step, each with its own copy of the optimizer's state.
All workers read the same bits of G, so x stays equal on all. Push and pull happen at the end of
backward.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Unpack

import numpy as np
import torch

from smbox.errors import ConfigError
from smbox_torch.averaging.box_sum import BoxSum
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.averaging.mean import averaged, buffers_of
from smbox_torch.averaging.optimizer import AveragingOptimizer
from smbox_torch.averaging.summed_mean import SummedMean
from smbox_torch.boxes import BoxLike
from smbox_torch.checks import seconds
from smbox_torch.model.buffers import float_buffers
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.wrapper import BoxOptimizer
from smbox_torch.workers.launch import continues, launch_of
from smbox_torch.workers.phase import Phase, of_this_start
from smbox_torch.world import World

__all__ = ["ParameterServer"]

BARRIER_TIMEOUT_S = 300.0
"""Longest wait for the slowest worker."""

Copies = list[tuple[torch.Tensor, torch.Tensor]]
"""Tensors, each with a copy of its values."""


class ParameterServer(BoxOptimizer, AveragingOptimizer):
    """Synchronous SGD with sums in the memory; all workers must take part until the end.

    If a worker died or left, ``backward`` and ``step`` of the others raise WorkerLostError; if
    it finished, StepMismatchError; if it is stopped or too slow, RequestTimeoutError after
    ``timeout_s``. The parameters are then unchanged by the step. The center in the memory is
    updated by ``state_dict``, ``center_into``, ``finish`` and ``close`` only. When a launcher
    restarts all workers, they begin with the center and its number of steps.

    Args:
        optimizer: the inner optimizer; on every worker it steps with the mean gradient.
        box: the memory box.
        name: name of the run.
        timeout_s: longest wait for the slowest worker, in seconds.
        options: model, workers, rank and others, except ``wire``: see BoxOptimizer. Buffers of
            the model, also integer ones, are kept equal on all workers.

    Raises:
        ConfigError: a parameter cannot be averaged, or ``wire`` is given; nothing was created.
        LayoutMismatchError: a region of this name belongs to another model or number of
            workers.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        timeout_s: float = BARRIER_TIMEOUT_S,
        **options: Unpack[BoxOptions],
    ) -> None:
        if options.get("wire") is not None:
            raise ConfigError("gradient sums have a fixed dtype: leave out wire=")
        parameters, frozen = averaged(optimizer)
        timeout_s = seconds("timeout_s", timeout_s)
        own = _copies(optimizer, options.get("model"))
        super().__init__(optimizer, box, name, **options)
        self._own = None  # all workers have the same parameters
        self._frozen = frozen
        self._progress = box.create(
            f"{name}.progress", shape=2, dtype="int64", init=0, exist_ok=True
        )
        launch, steps = self._progress.get().tolist()
        self.steps = self._shared_steps = steps if continues(launch) else 0
        self._is_in_order = True
        self._sums = BoxSum(box, name, self.team, timeout_s=timeout_s)
        if own and not launch and (last := self._sums.last()):
            self._renew(own, last)
        model = options.get("model")
        buffers = buffers_of(model)
        mean = SummedMean(parameters, buffers, self._sums)
        self._sums.create(parameters, buffers)
        self._rounds = GradientRounds(
            parameters,
            mean,
            optimizer,
            model=model,
            recorder=self.recorder,
            demand=self._begin_round,
        )

    def _renew(self, own: Copies, last: int) -> None:
        """After a restart, replace initial parameters, as the center has them, by a checkpoint.

        Nobody has put a center since the run began. So the first worker puts what its script
        has loaded before wrapping; the others take it. All are restarted: ``last`` is the start
        that did a round before, and if there is none, a worker may wait with the initial ones.
        """
        key = f"{of_this_start(self.name)}.{last}"
        with Phase(self.box, key).restoring() as is_mine:
            if is_mine:
                for tensor, values in own:
                    tensor.detach().copy_(values)
                for center in self._centers():
                    for buffer, region in center:
                        region.put(buffer.load())
        for center in self._centers():
            center.take()
        self._remember()

    def _begin_round(self) -> None:
        """Raise if this rank cannot take part; the round detects a changed model."""
        self.team.check()
        self.own.check()
        self.flat.check()
        self.phase.use()

    def _share(self) -> None:
        """Put the parameters into the center; all workers put the same values."""
        for center in self._centers():
            center.put(center.flat.values())
        self._progress.put(np.array([launch_of(), self.steps], np.int64))
        self._note_shared()

    def _end(self) -> None:
        self._rounds.close(in_order=self._is_in_order)

    def _take_center(self) -> None:
        """Evaluate the own parameters, which all workers have."""
        self._set_inner("eval")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error the other workers get WorkerLostError."""
        self._is_in_order = error is None
        super().__exit__(kind, error, trace)

    def _extra_state(self) -> dict[str, Any]:
        """Put the parameters into the center, which is saved next; return an empty dict."""
        self._share_rest()
        return {}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:  # noqa: ARG002 - the base's
        """Restart the sums, and update the center: both may be from after the loaded step."""
        self._sums.restart()
        self._share()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the parameters (and buffers), which are equal on all workers, into a model."""
        self._share_rest()
        super().center_into(model)


def _copies(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> Copies:
    """Copy parameters and buffers in a worker that was restarted; else return nothing."""
    world = World.from_env(os.environ)
    if not (world.restart or world.worker_restart):
        return []
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    buffers = [] if model is None else float_buffers(model)
    return [(tensor, tensor.detach().clone()) for tensor in (*parameters, *buffers)]
