"""Asynchronous EASGD with the fused exchange.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, algorithm 1 (asynchronous). x the worker's parameters, c the center, t the
worker's own clock, g its gradient at the x it had before the exchange:

    every period steps:  d = moving_rate * (x - c);  c = c + d;  x = x - d     (one atomic op)
    every step:          x = x - lr * g                                 (the optimizer inside)

Variant: the order of the paper, elastic move first, then the step with the gradient of the
old x. The paper's worker reads c and sends d as two messages; here both are one operation at
the memory, so no other worker comes between, which is the round-robin scheme whose stability
does not depend on the number of workers.

With ``overlap`` the exchange of the x of step t runs on an update thread during the gradient
of step t + 1, and its d is subtracted when that gradient's step begins: x moves one step late,
and the bound of the fused exchange is only approached, not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Unpack

import torch

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.elastic import default_workers, moving_rate_or_default
from smbox_torch.options import BoxOptions
from smbox_torch.overlap import Overlap, OwnMoves, ThreadedExchange
from smbox_torch.wrapper import BoxOptimizer

__all__ = ["EASGD"]


class EASGD(BoxOptimizer):
    """Elastic averaging: each worker explores, and is tied to the common center by a spring.

    Args:
        optimizer: does the local steps (the paper: SGD without momentum).
        box: the memory.
        name: of the run.
        period: local steps between two exchanges.
        moving_rate: share of the distance that worker and center move; None: 0.9 / workers.
        overlap: hide the exchange behind the next gradient, on an update thread.
        options: model, workers: see BoxOptimizer. Buffers are exchanged like parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        period: int = 10,
        moving_rate: float | None = None,
        overlap: bool = False,
        **options: Unpack[BoxOptions],
    ) -> None:
        if period < 1:
            raise ConfigError("period must be at least 1", period=period)
        self.period = period
        self.moving_rate = moving_rate_or_default(
            moving_rate, default_workers(options.get("workers"))
        )
        super().__init__(optimizer, box, name, **options)
        self._overlap = self._overlapped() if overlap else None

    def _overlapped(self) -> Overlap:
        flat = [buffer for buffer, _ in self.pairs()]
        return Overlap(flat, OwnMoves(flat), self.recorder, ThreadedExchange(self))

    def _advance(self) -> None:
        if self._overlap is not None:
            self._overlap.settle()
        if self.steps % self.period == 0:
            self.exchange()
        self._local_step()

    def exchange(self) -> None:
        """Do one exchange now, whatever the period says (with overlap: begin it)."""
        if self._overlap is not None:
            self._overlap.begin()
            return
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            for center in self._centers():
                center.elastic(self.moving_rate)
        self.recorder.behind(self.center.behind())

    def prepare(self) -> None:
        """Raise ConfigError if x cannot be exchanged."""
        self._demand_exchangeable()

    def ask(self, xs: Sequence[Array], moves: Sequence[torch.Tensor]) -> None:
        """Exchange copies of x with the center; their moves come back in ``moves``.

        All of it that the memory answers is asked here, so that a worker whose exchanges run
        on an update thread has answers kept for that thread alone.

        Args:
            xs: one ``[P]`` per buffer, of the center's dtype; left alone.
            moves: as many tensors of the same shapes and dtypes, on the CPU.
        """
        self.phase.use()
        senders = chain.from_iterable(center.senders for center in self._centers())
        for x, move, (_, region), sender in zip(xs, moves, self.pairs(), senders, strict=True):
            region.elastic(sender.operand(x), self.moving_rate, delta=as_array(move))
        self.recorder.behind(self.center.behind())

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where :meth:`state_dict` was taken; see BoxOptimizer."""
        if self._overlap is not None:
            self._overlap.finish()
        super().load_state_dict(state_dict, force=force)

    def _extra_state(self) -> dict[str, Any]:
        return {} if self._overlap is None else {"moves": self._overlap.state()}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        if self._overlap is not None:
            self._overlap.load_state(extra.get("moves"))

    def close(self) -> None:
        """Finish the exchange under way, so that worker and center are consistent."""
        if self._overlap is not None:
            try:
                self._overlap.settle()
            finally:
                self._overlap.close()
