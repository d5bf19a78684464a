"""Synchronous EASGD: all workers meet, read one center, and move together.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, section 2. x_i the parameters of worker i of p, c the center:

    every period steps, all at once:  d_i = moving_rate (x_i - c);  x_i -= d_i;  c += sum d_i
    every step:                       x_i -= lr * gradient of the old x_i

With beta = p * moving_rate this is the paper's c = (1 - beta) c + beta mean(x_i). Variant: the
gradient is that of the x before the move, as in the paper. Order of an exchange: read c,
meeting (everybody has read), add d, meeting (everybody has added). A worker that waits in
``finish``, left or died takes part no more, and the others go on; one that is missing otherwise
times out their meeting.

Buffers of batch norm are no part of the paper's x. They move in a fused exchange of each worker
after the second meeting, after which both sides lie between the two values that they had. Moves
of several workers from one center, added one after another, could make a variance negative.
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
        optimizer: does the local steps.
        box: the memory.
        name: of the run.
        period: local steps between two exchanges; the same on all workers.
        moving_rate: None: 0.9 / workers; StabilityWarning where it may diverge.
        timeout_s: longest wait for the slowest worker, in seconds.
        options: model, workers: see BoxOptimizer. Buffers move in one fused exchange each.
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
        warn_if_unstable(self.moving_rate, self.workers)
        self._exchange = UnfusedExchange(list(self.center), self.moving_rate)

    def _agreed(self) -> dict[str, object]:
        return super()._agreed() | {"period": self.period}

    def _advance(self) -> None:
        if self.steps % self.period == 0:
            with self._exchanging(self.exchange_nbytes):
                self._exchange.read()
                self._meet("read")
                self._exchange.moving_rate = self.moving_rate
                self._exchange.move()
                self._exchange.add()
                self._meet("added")
                self._move_buffers(self.moving_rate)
            self._note_shared()
            self.recorder.behind(self.center.behind(mine=self.team.workers))
        self._local_step()

    def _meet(self, what: str) -> None:
        """Wait until all workers are here that are alive and have not finished.

        Raises:
            RequestTimeoutError: one did not come; the center may lack some workers' moves.
        """
        self.team.meet(what, self.timeout_s)

    def _share(self) -> None:
        """Exchange alone, in one atomic operation: the others may have ended elsewhere."""
        with self._exchanging(self.exchange_nbytes):
            for center in self._centers():
                center.elastic(self.moving_rate)
        self._note_shared()
