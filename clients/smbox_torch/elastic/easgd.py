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

With ``overlap`` the exchange runs on an update thread while the gradient is taken, which leaves
x as it is: it begins when the step before has moved x, and its d is subtracted when the step
that it is due in begins. So each worker does the same as without. Buffers of batch norm change
with the gradient: they move at once, before x goes out, for a move that comes late could make a
running variance negative.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Unpack

import torch

from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.checks import flag
from smbox_torch.elastic.elastic import ElasticOptimizer
from smbox_torch.elastic.overlap import NoBroadcast, Overlap, ThreadedExchange
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["EASGD"]


class EASGD(ElasticOptimizer):
    """Elastic averaging: each worker explores, and is tied to the common center by a spring.

    Args:
        optimizer: does the local steps (the paper: SGD without momentum).
        box: the memory.
        name: of the run.
        period: local steps between two exchanges.
        moving_rate: share of the distance that worker and center move; None: 0.45.
        overlap: hide the exchange behind the gradient, on an update thread; only steps, and
            what this object is told to do, may then change the parameters.
        options: model, workers: see BoxOptimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        period: int = 1,
        moving_rate: float | None = None,
        overlap: bool = False,
        **options: Unpack[BoxOptions],
    ) -> None:
        is_hidden = flag("overlap", overlap)
        super().__init__(
            optimizer, box, name, period=period, moving_rate=moving_rate, **options
        )
        self._overlap = self._overlapped() if is_hidden else None

    def _overlapped(self) -> Overlap:
        flat = self.flat.buffers
        return Overlap(flat, NoBroadcast(flat), self.recorder, ThreadedExchange(self))

    def _advance(self) -> None:
        self._exchange_if_due()
        if self._overlap is None:
            self._local_step()
            return
        self._overlap.settle()
        self._local_step()
        self._exchange_if_due()  # what the next step begins with

    def _exchange_if_due(self) -> None:
        is_pending = self._overlap is not None and self._overlap.is_pending
        if self.steps % self.period == 0 and not is_pending:
            self.exchange()

    def exchange(self) -> None:
        """Do one exchange now, whatever the period says (with overlap: begin it)."""
        if self._overlap is not None:
            self._overlap.begin()
            self._note_shared()
            return
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            self.center.elastic(self.moving_rate)
            self._move_buffers(self.moving_rate)
        self._note_shared()
        self.recorder.behind(self.center.behind())

    def prepare(self) -> Sequence[Array]:
        """Exchange the buffers, then return x; no copy, as nobody changes it before the step.

        Raises:
            ConfigError: x cannot be exchanged.
            LeaseLostError: another process has this worker's rank.
        """
        self.team.check()
        self._demand_exchangeable()
        began_s = time.monotonic()
        self._move_buffers(self.moving_rate)
        self.recorder.waited(time.monotonic() - began_s)
        return [buffer.load() for buffer in self.flat.buffers]

    def request_moves(self, xs: Sequence[Array], moves: Sequence[torch.Tensor]) -> None:
        """Exchange x with the center; its moves come back in ``moves``.

        All of x that the memory answers is asked here, so that a worker whose exchanges run
        on an update thread has answers kept for that thread alone.

        Args:
            xs: one ``[P]`` per dtype, of the center's dtype; left alone.
            moves: as many tensors of the same shapes and dtypes, on the CPU.
        """
        self.phase.use()
        for region, sent, move in zip(
            self.center.regions, self.center.operands(xs), moves, strict=True
        ):
            region.elastic(sent, self.moving_rate, delta=as_array(move))
        self.recorder.behind(self.center.behind())

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where :meth:`state_dict` was taken; see BoxOptimizer."""
        self._await_exchange()
        super().load_state_dict(state_dict, force=force)

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model, after the exchange under way; see BoxOptimizer."""
        self._await_exchange()
        super().center_into(model)

    def _take_center(self) -> None:
        self._await_exchange()
        super()._take_center()

    def _await_exchange(self) -> None:
        """Return when nobody reads x any more; a move stays pending."""
        if self._overlap is not None:
            self._overlap.finish()

    def _extra_state(self) -> dict[str, Any]:
        return {} if self._overlap is None else {"moves": self._overlap.state()}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        if self._overlap is not None:
            self._overlap.load_state(extra.get("moves"))

    def _share(self) -> None:
        self.exchange()

    def _end(self) -> None:
        if self._overlap is not None:
            try:
                self._overlap.settle()
            finally:
                self._overlap.close()
