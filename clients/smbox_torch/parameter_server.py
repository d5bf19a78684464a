"""The synchronous parameter server: gradients add up in one place, and everybody reads the sum.

Li et al.: Scaling distributed machine learning with the parameter server, OSDI 2014, in the
synchronous form that is usually compared with ring all-reduce. g_i the gradient of worker i
of p at the common x, G a region, f the step of the optimizer inside:

    push:  G = G + g_i / p          (the memory adds; the order of workers is not defined)
    barrier
    pull:  x = f(x, G)              (every worker alike)

Variant: the memory sums, the workers step, each with its own copy of the optimizer's state.
All read the same bits of G, so all x stay equal. Three Gs take turns: rank 0 clears the one
of the next step before the barrier, when nobody can be reading it any more. Per step and
worker, push and pull move the parameters' bytes twice, all of them by one node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Unpack

import torch

from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.center import Center
from smbox_torch.options import BoxOptions
from smbox_torch.phase import of_this_start
from smbox_torch.world import World
from smbox_torch.wrapper import BoxOptimizer

__all__ = ["ParameterServer"]

TURNS = 3
BARRIER_TIMEOUT_S = 300.0
"""Longest wait for the slowest worker."""


class ParameterServer(BoxOptimizer):
    """Synchronous SGD by a sum in the memory; all workers take part to the end.

    Args:
        optimizer: steps with the mean gradient, on every worker alike.
        box: the memory.
        name: of the run.
        rank: of this worker; None: RANK of the environment, else 0.
        timeout_s: longest wait for the slowest worker, in seconds.
        options: model, workers: see BoxOptimizer. All workers must take part.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        rank: int | None = None,
        timeout_s: float = BARRIER_TIMEOUT_S,
        **options: Unpack[BoxOptions],
    ) -> None:
        super().__init__(optimizer, box, name, gradients=True, **options)
        self.rank = World.from_env(os.environ).rank if rank is None else rank
        self.timeout_s = timeout_s
        self._sums = [
            Center(box, f"{name}.gradient{turn}", self.flat, init=0.0, leads=False)
            for turn in range(TURNS)
        ]
        self._has_begun = False

    def _advance(self) -> None:
        if not self._has_begun:
            self._begin()
        self.flat.attach_gradients()
        moved = 3 if self.rank == 0 else 2  # it clears the next sum, too
        total = self._sums[self.steps % TURNS]
        with self._exchanging(total.sent_nbytes + (moved - 1) * total.nbytes):
            sent = total.operands(self._wide_gradients())
            for region, operand in zip(total.regions, sent, strict=True):
                region.accumulate(operand, 1.0 / self.workers)
            if self.rank == 0:
                self._clear(self._sums[(self.steps + 1) % TURNS])
            self._meet("added")
            for gradient, mean in zip(self._gradients(), total.values().values(), strict=True):
                gradient.copy_(mean)
        self._local_step()

    def _begin(self) -> None:
        """Clear what was added before, by this run or another, when all have read it."""
        self._meet("begun")
        if self.rank == 0:
            self._clear(self._sums[self.steps % TURNS])
        self._meet("cleared")
        self._has_begun = True

    def _load_extra_state(self, extra: dict[str, Any]) -> None:  # noqa: ARG002 - the base's
        """Begin anew: the turn of the step that was loaded holds what came later."""
        self._has_begun = False

    def _gradients(self) -> list[torch.Tensor]:
        return [buffer.gradient for buffer in self.flat.buffers if buffer.gradient is not None]

    def _wide_gradients(self) -> Iterator[Array]:
        """Iterate over the gradients in the center's dtype, on the CPU."""
        for gradient, buffer in zip(self._gradients(), self.flat.buffers, strict=True):
            yield as_array(gradient.to("cpu", buffer.wide.dtype))

    def _clear(self, total: Center) -> None:
        total.put({b.dtype: torch.zeros(b.size) for b in self.flat.buffers})

    def _meet(self, what: str) -> None:
        """Wait until all workers are here.

        Raises:
            RequestTimeoutError: one did not come; x is as before the step.
        """
        self.box.barrier(
            of_this_start(f"{self.name}.{what}"), self.workers, timeout_s=self.timeout_s
        )

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the parameters, which all workers have in common, into a model."""
        self.center.put({b.dtype: b.flat.detach().cpu() for b in self.flat.buffers})
        super().center_into(model)
