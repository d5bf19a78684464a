"""Sandblaster L-BFGS: the coordinator, which sends commands.

Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, section 4.2. The vectors stay at
the memory (``node_lbfgs.py``); the load is balanced by small portions (``portions.py``), which
workers fetch (``worker.py``). With f
the sum of the losses of all portions, g its gradient, d = H g:

    x = base - t d,  t = 1, 1/2, 1/4, ...  until  f(x) <= f(base) - 1e-4 t g.d     (Armijo)

The first step, and each without pairs, begins at t = min(1, 1 / |g|). A trial whose loss is not
finite is as one that is too high.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch

from smbox.errors import SmboxError
from smbox.head import check_prefix
from smbox_torch.boxes import check_box
from smbox_torch.checks import lease, seconds
from smbox_torch.sandblaster.node_lbfgs import NodeLBFGS
from smbox_torch.sandblaster.portions import Portions, check_counts
from smbox_torch.sandblaster.worker import only_buffer
from smbox_torch.workers.joining import LEASE_S

__all__ = ["Sandblaster", "SandblasterStep"]

ARMIJO: Final = 1e-4
TRIES_MAX: Final = 20

LOSS_NOT_FINITE: Final = "the loss is infinite or NaN"
SLOPE_NOT_FINITE: Final = (
    "the gradient is infinite or NaN, or its square is too large for float64"
)
SLOPE_ZERO: Final = "the gradient is zero, or its square is too small for float64"
NOTHING_LOWER: Final = f"none of {TRIES_MAX} trials lowered the loss"


class SandblasterStep(NamedTuple):
    """What an iteration did.

    Attributes:
        loss: f at x.
        size: t; 0.0: x is where it was, and the pairs are forgotten.
        evaluations: of f, all portions each.
        stop: why x stayed, in words; empty if it moved. Where two steps in a row stop, all
            later ones do.
    """

    loss: float
    size: float
    evaluations: int
    stop: str = ""


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
        lease_s: seconds without a sign of life after which workers on other hosts count this
            process as dead.

    Attributes:
        timeout_s: as the argument; may be set.
        vectors: the regions of L-BFGS.
        portions: the state of the work; counts who did how much.

    Raises:
        ConfigError, TypeError, LimitError: parameters of several dtypes or of 16 bits, a number
            that is not whole or below 1, or a name that no run can have; nothing was made.
        RegionExistsError, OutOfMemoryError: the name is in use, or there is no room; nothing
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
        check_prefix(name)
        portions, workers = check_counts(portions, workers)
        lease_s = lease(lease_s)
        self._flat = only_buffer(parameters)
        self.timeout_s = seconds("timeout_s", timeout_s)
        self._count = portions
        self._loss: float | None = None
        self._evaluations = 0
        self._is_at_trial = False
        size, dtype = self._flat.size, self._flat.dtype
        self.vectors = NodeLBFGS(box, name, size, dtype, history)
        try:
            self.vectors.x.put(self._flat.load())
            more = {"lease_s": lease_s}
            self.portions = Portions(box, name, portions, workers, size, dtype, **more)
        except BaseException:
            with suppress(SmboxError):  # the first error says more
                self.vectors.free()
            raise
        self._box = box
        box.before_close(self._end)

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
        if self._is_at_trial:  # of a step that failed, and could not go back
            self._go_back()
        before, vectors = self._evaluations, self.vectors
        loss = self.evaluate() if self._loss is None else self._loss
        slope = self._direct() if math.isfinite(loss) else math.nan
        stop = _stop(loss, slope)
        size = 0.0
        if not stop:
            vectors.begin()
            loss, size = self._search(loss, slope)
            stop = "" if size else NOTHING_LOWER
        if stop:
            vectors.forget()
        self._loss = loss
        return SandblasterStep(loss, size, self._evaluations - before, stop)

    def _search(self, loss: float, slope: float) -> tuple[float, float]:
        """Move x along the direction; return the loss there and t, 0.0 if x is back."""
        step = 1.0 if self.vectors.pairs else min(1.0, 1.0 / math.sqrt(slope))
        self._loss = None  # until the step is over: an error leaves x at a trial
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
        """Compute the direction, that of the gradient if the pairs lead nowhere; return g.d."""
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
        """End the run: workers stop at once, and all regions but x are freed. Idempotent.

        Also done when the box closes.

        Raises:
            SmboxError: a node did not answer; call again to free the rest.
        """
        self._box.not_before_close(self._end)
        self.portions.close()
        self.vectors.close()

    def _end(self) -> None:
        """Close with the box: its memory may be gone, and the regions with it."""
        with suppress(SmboxError):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stop(loss: float, slope: float) -> str:
    """Say why no step can be taken; nothing if one can."""
    if not math.isfinite(loss):
        return LOSS_NOT_FINITE
    if not math.isfinite(slope):
        return SLOPE_NOT_FINITE
    return "" if slope > 0.0 else SLOPE_ZERO
