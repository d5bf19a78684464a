"""Sandblaster: the coordinator of distributed L-BFGS.

Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.2. The vectors stay at
the memory node (``node_lbfgs.py``). The work is cut into small portions (``scheduler.py``) that
workers fetch (``worker.py``). f is the sum of the losses of all portions, g its gradient, and
d = H g:

    x = base - t d,  t = 1, 1/2, 1/4, ...  until  f(x) <= f(base) - 1e-4 t g.d     (Armijo)

The first step, and every step without pairs, begins at t = min(1, 1 / |g|). A trial whose loss
is not finite is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch

from smbox.errors import SmboxError
from smbox_torch.boxes import check_box
from smbox_torch.checks import lease, seconds
from smbox_torch.sandblaster.node_lbfgs import NodeLBFGS
from smbox_torch.sandblaster.scheduler import PortionScheduler, check_counts
from smbox_torch.sandblaster.worker import single_buffer
from smbox_torch.workers.claim import check_run_name
from smbox_torch.workers.joining import LEASE_S

__all__ = ["Sandblaster", "SandblasterStep"]

ARMIJO: Final = 1e-4
TRIES_MAX: Final = 20

LOSS_NOT_FINITE: Final = "the loss is infinite or NaN"
SLOPE_NOT_FINITE: Final = (
    "the gradient is infinite or NaN, or its square is too large for float64"
)
SLOPE_ZERO: Final = "the gradient is zero, or its square is too small for float64"
NOT_LOWERED: Final = f"none of {TRIES_MAX} trials lowered the loss"


class SandblasterStep(NamedTuple):
    """Result of one iteration.

    Attributes:
        loss: f at x.
        size: step size t; 0.0 if x did not change, in which case all pairs were dropped.
        evaluations: number of evaluations of f, of all portions each.
        stop: the reason, as text, why x did not change; empty if it changed. If two steps in a
            row do not change x, later steps do not either.
    """

    loss: float
    size: float
    evaluations: int
    stop: str = ""


class Sandblaster:
    """The coordinator of an L-BFGS run; parameters and gradients stay at the memory node.

    One process creates it. The initial values of x are those of ``parameters``. It creates the
    regions of the run. After a coordinator has died, start the next run under another name.

    Args:
        box: connection to the memory.
        parameters: the model's parameters, on any device, all float32 or all float64.
        name: name of the run; workers must pass the same name.
        workers: largest number of workers; their ranks are 0 to workers - 1. Workers may join
            and leave at any time.
        portions: number of portions in one evaluation. Use several for each worker.
        history: number of pairs that L-BFGS stores. The paper gives none; 10 is common.
        timeout_s: longest time without a report from any worker, in seconds.
        lease_s: seconds without renewal after which workers on other hosts count this process
            as dead.

    Attributes:
        timeout_s: the argument; may be changed.
        vectors: the regions of L-BFGS.
        portions: the scheduler of the portions; it counts the portions of each worker.

    Raises:
        ConfigError, TypeError, LimitError: the parameters have several dtypes or 16 bits, a
            count is not an integer of at least 1, or the name is not valid; no region is
            left.
        RegionExistsError, OutOfMemoryError: the name is in use, or memory is short; no region
            is left.
        RankTakenError: another living process coordinates a run of this name.
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
        lease_s: float = LEASE_S,
    ) -> None:
        check_box(box)
        check_run_name(name)
        portions, workers = check_counts(portions, workers)
        lease_s = lease(lease_s)
        self._flat = single_buffer(parameters)
        self.timeout_s = seconds("timeout_s", timeout_s)
        self._count = portions
        self._loss: float | None = None
        self._evaluations = 0
        self._is_at_trial = False
        size, dtype = self._flat.size, self._flat.dtype
        with ExitStack() as undo:
            self.portions = PortionScheduler(
                box, name, portions, workers, size, dtype, lease_s=lease_s
            )
            undo.callback(_quietly, self.portions.close)
            # x after the lease: workers take x without a lease for the end of a run.
            self.vectors = NodeLBFGS(box, name, size, dtype, history)
            undo.callback(_quietly, self.vectors.free)
            self.vectors.x.put(self._flat.load())
            self.portions.open()
            undo.pop_all()
        self._box = box
        box.before_close(self, self._end)

    def evaluate(self) -> float:
        """Have the workers compute f and its gradient at x; return f.

        The gradient is left in ``vectors.gradient``. Losses are added in the order of the
        portions, gradients in the order of the reports.

        Raises:
            RequestTimeoutError: no worker reported in time; the work of this round is lost.
        """
        self._loss = None  # an error leaves a part of the gradient
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
            RequestTimeoutError: no worker reported in time; the next step begins at the same x,
                without pairs.
        """
        if self._is_at_trial:  # an earlier step failed and could not restore x
            self._go_back()
        before, vectors = self._evaluations, self.vectors
        loss = self.evaluate() if self._loss is None else self._loss
        slope = self._direct() if math.isfinite(loss) else math.nan
        stop = _stop(loss, slope)
        size = 0.0
        if not stop:
            vectors.begin()
            loss, size = self._search(loss, slope)
            stop = "" if size else NOT_LOWERED
        if stop:
            vectors.forget()
        self._loss = loss
        return SandblasterStep(loss, size, self._evaluations - before, stop)

    def _search(self, loss: float, slope: float) -> tuple[float, float]:
        """Search along the direction; return the loss and t, or t = 0.0 if x was restored."""
        step = 1.0 if self.vectors.pairs else min(1.0, 1.0 / math.sqrt(slope))
        self._is_at_trial = True
        for _ in range(TRIES_MAX):
            try:
                self.vectors.move(step)
                found = self.evaluate()
            except BaseException:
                self._go_back()
                raise
            if math.isfinite(found) and found <= loss - ARMIJO * step * slope:
                self._is_at_trial = False
                self.vectors.learn(step)
                return found, step
            step /= 2
        self._go_back()
        return loss, 0.0

    def _go_back(self) -> None:
        self.vectors.undo()
        self._is_at_trial = False

    def _direct(self) -> float:
        """Compute the direction and return g.d; drop the pairs if they give no descent."""
        slope = self.vectors.direct()
        if self.vectors.pairs and not 0.0 < slope < math.inf:
            self.vectors.forget()
            slope = self.vectors.direct()
        return slope

    def load(self) -> None:
        """Copy x into the parameters of the model."""
        self.vectors.x.get(out=self._flat.host)
        self._flat.store()

    def close(self) -> None:
        """End the run: workers stop at once, and all regions except x are freed. Idempotent.

        Closing the box calls it.

        Raises:
            SmboxError: a node did not answer; call again to free the remaining regions.
        """
        self.portions.close()
        self.vectors.close()
        self._box.not_before_close(self)

    def _end(self) -> None:
        """Close when the box closes; its memory and the regions may no longer exist."""
        with suppress(SmboxError):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _quietly(undo: Callable[[], None]) -> None:
    """Undo a part of a constructor; the error that ended it says more than one of this."""
    with suppress(SmboxError):
        undo()


def _stop(loss: float, slope: float) -> str:
    """Return why no step is possible, or an empty string."""
    if not math.isfinite(loss):
        return LOSS_NOT_FINITE
    if not math.isfinite(slope):
        return SLOPE_NOT_FINITE
    return "" if slope > 0.0 else SLOPE_ZERO
