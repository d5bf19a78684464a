"""SEASGD: asynchronous EASGD as ShmCaffe runs it on Soft Memory Box.

Ahn, Kim, Lim, Kang: ShmCaffe: a distributed deep learning platform with shared memory buffer
for HPC architecture, ICDCS 2018, DOI 10.1109/ICDCS.2018.00111 (ShmCaffe-A), equations 5-7.
W the worker's parameters, Wg the center, in the order of the paper's two threads:

    main thread                                update thread
    T1  read Wg                                (sleeps until T3)
    T2  dW = moving_rate (W - Wg);  W -= dW    A1  write dW to the memory
    T3  wake the update thread                 A2  request to add dW to Wg
    T4  gradient at the moved W                A3  the memory adds: Wg += dW
    T5  W -= lr * gradient                     A4  the memory acknowledges

If A1-A4 take longer than T4 and T5, the main thread waits before T1 (the paper: before T2,
because dW is still in use). Otherwise Wg might lack this worker's own last dW. The read of Wg
is never overlapped: Wg would be stale.

Variant: the elastic move comes first, and the gradient is taken at the *moved* W (EASGD of the
NIPS paper takes it at the old W). Read and add are separate operations: see the bound in
stability.py. In this code a step begins with T5 and ends with T1-T3, every ``period`` steps
(the paper: 1).

The paper's W does not include batch-norm buffers. They are moved by a fused exchange between T2
and T3, which leaves both sides between their two old values. Unfused moves of several workers
from one Wg could make a running variance negative.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch

from smbox_torch.boxes import BoxLike
from smbox_torch.checks import flag
from smbox_torch.elastic.center_add import CenterAdd, check_increment, create_increments
from smbox_torch.elastic.elastic import ElasticOptimizer
from smbox_torch.elastic.stability import warn_if_unstable
from smbox_torch.elastic.unfused import UnfusedExchange
from smbox_torch.optimizer.center import Center
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["SEASGD"]


class SEASGD(ElasticOptimizer):
    """Elastic averaging in three steps; the add runs while the next gradient is computed.

    Args:
        optimizer: the inner optimizer; it does the local steps (the paper: SGD with momentum
            0.9).
        box: the memory box.
        name: name of the run.
        period: local steps between two exchanges; the paper's update interval.
        moving_rate: share of the distance that worker and center move; None: 0.9 / workers.
            The paper has 0.2 for any number of workers.
        overlap: add on an update thread, as the paper does; False: add before ``step`` returns.
        increment: name of this worker's own increment region. The move is written there and
            added region to region, as in the paper. None: the request contains the move.
        options: model, workers and others: see BoxOptimizer. Buffers are moved by one fused
            exchange per worker.

    Warns:
        StabilityWarning: workers * moving_rate, if given, is above the bound of separate read
            and add.
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
        overlap: bool = True,
        increment: str | None = None,
        **options: Unpack[BoxOptions],
    ) -> None:
        is_hidden = flag("overlap", overlap)
        check_increment(increment)
        super().__init__(
            optimizer, box, name, period=period, moving_rate=moving_rate, **options
        )
        warn_if_unstable(moving_rate, self.workers)
        increments = create_increments(box, self.center, increment)
        self._exchange = UnfusedExchange(self.center, increments)
        self._adding = CenterAdd(self._exchange, self.recorder, is_hidden=is_hidden)

    def _advance(self) -> None:
        self._local_step()
        if self.steps % self.period == 0:
            self.exchange()

    def exchange(self) -> None:
        """Read the center, move x, and begin the add (T1 to T3)."""
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            self._adding.finish()
            self._exchange.read()
            self._exchange.move(self.moving_rate)
            self._move_buffers(self.moving_rate)
            self._adding.begin()
        self._note_shared()

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Resume from a state, after the add in flight has finished; see BoxOptimizer."""
        self._adding.finish()
        super().load_state_dict(state_dict, force=force)

    def _extra_state(self) -> dict[str, Any]:
        self._adding.finish()
        return super()._extra_state()

    def _evaluated_center(self) -> Center:
        self._adding.finish()  # the center lacks this worker's last move until then
        return super()._evaluated_center()

    def _share(self) -> None:
        self.exchange()

    def _end(self) -> None:
        self._adding.close()
