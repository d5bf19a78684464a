"""Synchronous EASGD: all workers read the same center and move in the same step.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, section 2. x_i the parameters of worker i of p, c the center:

    every period steps, together:     d_i = moving_rate (x_i - c);  x_i -= d_i;  c += sum d_i
    every step:                       x_i -= lr * gradient of the old x_i

With beta = p * moving_rate this is the paper's c = (1 - beta) c + beta mean(x_i). As in the
paper, the gradient is that of x before the move. Order of an exchange: read c, barrier (all
workers have read), add d, barrier (all workers have added). A worker that waits in ``finish``,
left or died no longer takes part, and the others continue. If any other worker is missing, the
barrier times out. A worker that joins while the others are between the two barriers waits with
them at the second one before it reads.

The paper's x does not include batch-norm buffers. After the second barrier each worker moves
them in a fused exchange, which leaves both sides between their two old values. Unfused moves of
several workers from one center could make a variance negative.
"""

from __future__ import annotations

from typing import Unpack

import torch

from smbox_torch.boxes import BoxLike
from smbox_torch.checks import seconds
from smbox_torch.elastic.elastic import ElasticOptimizer
from smbox_torch.elastic.stability import warn_if_unstable
from smbox_torch.elastic.unfused import UnfusedExchange
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["SyncEASGD"]

BARRIER_TIMEOUT_S = 300.0
"""Longest wait for the slowest worker."""


class SyncEASGD(ElasticOptimizer):
    """Elastic averaging in lockstep.

    Args:
        optimizer: the inner optimizer; it does the local steps.
        box: the memory box.
        name: name of the run.
        period: local steps between two exchanges; the same on all workers.
        moving_rate: share of the distance that worker and center move; None: 0.9 / workers.
        timeout_s: longest wait for the slowest worker, in seconds.
        options: model, workers and others: see BoxOptimizer. Buffers are moved by one fused
            exchange per worker.

    Warns:
        StabilityWarning: the averaging may diverge at the moving rate that was given.
    """

    is_fused = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        period: int = 1,
        moving_rate: float | None = None,
        timeout_s: float = BARRIER_TIMEOUT_S,
        **options: Unpack[BoxOptions],
    ) -> None:
        self.timeout_s = seconds("timeout_s", timeout_s)
        super().__init__(
            optimizer, box, name, period=period, moving_rate=moving_rate, **options
        )
        warn_if_unstable(moving_rate, self.workers)
        self._exchange = UnfusedExchange(self.center)

    def _agreed(self) -> dict[str, object]:
        return super()._agreed() | {"period": self.period}

    def _advance(self) -> None:
        if self.steps % self.period == 0:
            with self._exchanging(self.exchange_nbytes):
                if self.team.met % 2:  # it joined between the two barriers of the others
                    self._meet("added")
                self._exchange.read()
                self._meet("read")
                self._exchange.move(self.moving_rate)
                self._exchange.add()
                self._meet("added")
                self._move_buffers(self.moving_rate)
            self._note_shared()
            self.recorder.behind(self.center.behind(mine=self.team.workers))
        self._local_step()

    def _meet(self, what: str) -> None:
        """Wait until all workers that are alive and have not finished reach this barrier.

        Raises:
            RequestTimeoutError: a worker did not arrive; the center may lack moves of some
                workers.
        """
        with self.recorder.waiting_for_others():
            self.team.meet(what, self.timeout_s)

    def _share(self) -> None:
        """Do one atomic exchange without a barrier: other workers may have ended earlier."""
        with self._exchanging(self.exchange_nbytes):
            for center in self._centers():
                center.elastic(self.moving_rate)
        self._note_shared()
