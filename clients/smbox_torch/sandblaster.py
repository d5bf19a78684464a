"""Sandblaster L-BFGS: a coordinator that sends commands, and workers that fetch portions.

Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.2. The vectors stay at
the memory (``node_lbfgs.py``); the load is balanced by small portions (``portions.py``). With f
the sum of the losses of all portions, g its gradient, d = H g:

    x = base - t d,  t = 1, 1/2, 1/4, ...  until  f(x) <= f(base) - 1e-4 t g.d     (Armijo)

The first step, and each without pairs, begins at t = min(1, 1 / |g|).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch

from smbox.errors import ConfigError
from smbox_torch.flat import FlatBuffer, FlatParameters
from smbox_torch.node_lbfgs import NodeLBFGS
from smbox_torch.portions import Portions, Tickets, check_counts

__all__ = ["Sandblaster", "SandblasterStep", "SandblasterWorker"]

ARMIJO: Final = 1e-4
TRIES_MAX: Final = 20


class SandblasterStep(NamedTuple):
    """What an iteration did.

    Attributes:
        loss: f at x.
        size: t; 0.0: no t lowered f, x is where it was and the pairs are forgotten.
        evaluations: of f, all portions each.
    """

    loss: float
    size: float
    evaluations: int


class Sandblaster:
    """The coordinator of a run: no parameter and no gradient comes here.

    One process makes it; ``parameters`` give x its first values. The regions of a run are made
    anew: a run whose coordinator has died is begun again under another name.

    Args:
        box: connection to the memory.
        parameters: of the model, on any device; all float32, or all float64.
        name: of the run; the workers name the same one.
        workers: how many slots there are: ranks 0 to workers - 1. They come and go at will.
        portions: into how many the work of an evaluation is cut: several for each worker.
        history: pairs of L-BFGS; the paper gives no number, and ten is usual.
        timeout_s: seconds to wait for a report when no worker reports.

    Attributes:
        timeout_s: as the argument; may be set.
        vectors: the regions of L-BFGS.
        portions: the state of the work; counts who did how much.

    Raises:
        ConfigError: parameters of several dtypes or of 16 bits, or a number below 1.
        RegionExistsError: the name is in use.
    """

    def __init__(
        self,
        box: Any,
        parameters: Iterable[torch.Tensor],
        name: str = "sandblaster",
        *,
        workers: int,
        portions: int,
        history: int = 10,
        timeout_s: float = 300.0,
    ) -> None:
        check_counts(portions, workers)
        self._flat = _only(parameters)
        self.timeout_s = timeout_s
        self._count = portions
        self._loss: float | None = None
        self._evaluations = 0
        size, dtype = self._flat.size, self._flat.dtype
        self.vectors = NodeLBFGS(box, name, size, dtype, history)
        self.vectors.x.put(self._flat.load())
        self.portions = Portions(box, name, portions, workers, size, dtype)

    def evaluate(self) -> float:
        """Have the workers compute f at x, and leave the gradient in ``vectors.gradient``.

        Losses are added in the order of the portions, gradients in that of the reports.

        Raises:
            RequestTimeoutError: no worker reported in time; what was done of the round is lost.
        """
        losses = np.zeros(self._count)
        is_first = True
        self.portions.begin()
        for report in self.portions.reports(self.timeout_s):
            slot = self.portions.slots[report.rank]
            self.vectors.gradient.accumulate_from(slot, op="replace" if is_first else "sum")
            losses[report.ticket.portion] = report.loss
            is_first = False
        self._evaluations += 1
        return sum(losses.tolist())

    def step(self) -> SandblasterStep:
        """Do one iteration.

        Raises:
            RequestTimeoutError: no worker reported in time; the next step begins where this
                one began, without pairs.
        """
        before, vectors = self._evaluations, self.vectors
        loss = self.evaluate() if self._loss is None else self._loss
        slope = self._direct()
        vectors.begin()
        self._loss = None  # until the step is over: an error leaves x at a trial
        step = 1.0 if vectors.pairs else min(1.0, 1 / math.sqrt(slope)) if slope > 0 else 0.0
        for _ in range(TRIES_MAX if step else 0):
            try:
                vectors.move(step)
                found = self.evaluate()
            except BaseException:
                vectors.undo()
                raise
            if found <= loss - ARMIJO * step * slope:
                vectors.learn(step)
                self._loss = found
                return SandblasterStep(found, step, self._evaluations - before)
            step /= 2
        vectors.undo()
        self._loss = loss
        return SandblasterStep(loss, 0.0, self._evaluations - before)

    def _direct(self) -> float:
        """Compute the direction, that of the gradient if the pairs lead upwards; return g.d."""
        slope = self.vectors.direct()
        if self.vectors.pairs and not slope > 0:
            self.vectors.forget()
            slope = self.vectors.direct()
        return slope

    def load(self) -> None:
        """Copy x into the parameters of the model."""
        self.vectors.x.get(out=self._flat.host)
        self._flat.store()

    def close(self) -> None:
        """End the run: workers stop. The vectors but x are freed; slots stay. Idempotent."""
        self.portions.end()
        self.vectors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SandblasterWorker:
    """A worker of a run: it computes losses and gradients of portions until the run ends.

    Args:
        box: the worker's own connection to the memory.
        parameters: of its model: shapes and dtype as the coordinator's. Values come from x.
        name: of the run.
        rank: of this worker; no other process has it at the same time.
        timeout_s: how long the coordinator may be silent, or not be there yet.

    Attributes:
        computed: portions that it has computed.

    Raises:
        ConfigError: parameters of several dtypes, of 16 bits, or not those of the run; or the
            run has no worker of this rank.
        RegionNotFoundError: there was no coordinator in time.
    """

    def __init__(
        self,
        box: Any,
        parameters: Iterable[torch.Tensor],
        name: str = "sandblaster",
        *,
        rank: int,
        timeout_s: float = 300.0,
    ) -> None:
        self.computed = 0
        self._flat = _only(parameters, gradients=True)
        self._tickets = Tickets(box, name, rank, timeout_s)
        self._x = box.attach(f"{name}.x")
        self._round = 0
        own = (self._flat.size,), self._flat.dtype
        if own != (self._x.shape, str(self._x.dtype)):
            raise ConfigError(
                "the worker's parameters are not those of the run", worker=own, name=name
            )

    def run(self, loss_of: Callable[[int], torch.Tensor]) -> None:
        """Compute portions until the coordinator ends the run.

        Args:
            loss_of: returns the loss of a portion, 0 to portions - 1, at the parameters; f is
                the sum over all portions. Every worker returns the same for the same portion.

        Raises:
            RequestTimeoutError: the coordinator was silent for too long.
        """
        while (ticket := self._tickets.draw()) is not None:
            if ticket.round != self._round:
                self._x.get(out=self._flat.host)
                self._flat.store()
                self._round = ticket.round
            self._flat.zero_gradients()
            loss = loss_of(ticket.portion)
            torch.autograd.backward(loss)
            self._flat.attach_gradients()
            self.computed += 1
            if not self._tickets.await_slot():
                return
            assert self._flat.gradient is not None, "attached"
            self._tickets.slot.put(self._flat.gradient.cpu())
            self._tickets.report(ticket, loss.item())


def _only(parameters: Iterable[torch.Tensor], *, gradients: bool = False) -> FlatBuffer:
    """Return the parameters as one flat buffer; ConfigError: they are of several dtypes."""
    flat = FlatParameters(parameters, gradients=gradients)
    if len(flat.buffers) > 1:
        raise ConfigError(
            "L-BFGS has one vector of parameters: convert the model to one dtype",
            dtypes=[buffer.dtype for buffer in flat.buffers],
        )
    return flat.buffers[0]
