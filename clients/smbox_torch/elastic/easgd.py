"""Asynchronous EASGD with the fused exchange.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, algorithm 1 (asynchronous). x the worker's parameters, c the center, t the
worker's own clock, g its gradient at the x it had before the exchange:

    every period steps:  d = moving_rate * (x - c);  c = c + d;  x = x - d     (one atomic op)
    every step:          x = x - lr * g                                 (the optimizer inside)

Variant: the order is the paper's: first the elastic move, then the step with the gradient of
the old x. The paper's worker reads c and sends d in two messages. Here both are one atomic
operation at the memory, so no other worker can change c in between. This is the round-robin
scheme, whose stability does not depend on the number of workers.

With ``overlap`` the exchange runs on an update thread while the gradient is computed, which
does not change x. The exchange begins at the end of the step before it is due, and d is
subtracted at the beginning of the step in which it is due. So each worker computes the same as
without overlap. The forward pass changes batch-norm buffers; they are exchanged at once, before
x is sent, because a late move could make a running variance negative.

Parameters on the CPU and a center in mapped memory are exchanged in the step, with ``overlap``
too: such an exchange is a few passes over memory, and to hide it takes almost as many.
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
    """Elastic averaging: workers explore, and an elastic force ties each one to the center.

    Args:
        optimizer: the inner optimizer; it does the local steps (the paper: SGD without
            momentum).
        box: the memory box.
        name: name of the run.
        period: local steps between two exchanges (the paper's tau).
        moving_rate: share of the distance that worker and center move (the paper's alpha);
            None: 0.45.
        overlap: run the exchange on an update thread while the gradient is computed, unless the
            parameters are on the CPU and the center is in mapped memory. Then only steps and
            methods of this object may change the parameters.
        options: model, workers and others: see BoxOptimizer.
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
        self._overlap = self._overlapped() if is_hidden and self._is_slow() else None

    def _is_slow(self) -> bool:
        """Return whether an exchange is more than a few passes over the host's memory."""
        is_on_cpu = all(buffer.flat.is_cpu for buffer in self.flat.buffers)
        is_mapped = all(region.is_local for region in self.center.regions)
        return not (is_on_cpu and is_mapped)

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
        self._exchange_if_due()  # the exchange of the next step

    def _exchange_if_due(self) -> None:
        is_pending = self._overlap is not None and self._overlap.is_pending
        if self.steps % self.period == 0 and not is_pending:
            self._exchange()

    def exchange(self) -> None:
        """Do one exchange now, regardless of the period (with overlap: begin it)."""
        self._exchange()

    def _exchange(self) -> None:
        if self._overlap is not None:
            self._begin_exchange()  # before the pending move changes x
            self._overlap.begin()
            self._note_shared()
            return
        with torch.no_grad(), self._exchanging(self.exchange_nbytes):
            self.center.elastic(self.moving_rate)
            self._move_buffers(self.moving_rate)
        self._note_shared()
        self.recorder.behind(self.center.behind())

    def prepare(self) -> Sequence[Array]:
        """Exchange the buffers, then return x, uncopied: it does not change before the step."""
        began_s = time.monotonic()
        self._move_buffers(self.moving_rate)
        self.recorder.waited(time.monotonic() - began_s)
        return [buffer.load() for buffer in self.flat.buffers]

    def request_moves(self, xs: Sequence[Array], moves: Sequence[torch.Tensor]) -> None:
        """Exchange x with the center and store the moves of x in ``moves``.

        All requests of the exchange are sent here, on one thread, so that the memory keeps
        answers for the update thread only.

        Args:
            xs: one ``[P]`` per dtype, of the center's dtype; not changed.
            moves: as many tensors of the same shapes and dtypes, on the CPU.
        """
        for region, sender, x, move in zip(
            self.center.regions, self.center.senders, xs, moves, strict=True
        ):
            with sender.sending(x) as sent:
                region.elastic(sent, self.moving_rate, delta=as_array(move))
        self.recorder.behind(self.center.behind())

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Resume from a state that :meth:`state_dict` returned; see BoxOptimizer."""
        self._await_exchange()
        super().load_state_dict(state_dict, force=force)

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model, after the exchange in flight; see BoxOptimizer."""
        self._await_exchange()
        super().center_into(model)

    def _take_center(self) -> None:
        self._await_exchange()
        super()._take_center()

    def _await_exchange(self) -> None:
        """Wait until the exchange in flight no longer reads x; its move stays pending."""
        if self._overlap is not None:
            self._overlap.finish()

    def _extra_state(self) -> dict[str, Any]:
        return {} if self._overlap is None else {"moves": self._overlap.state()}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        moves = extra.get("moves")
        if self._overlap is not None:
            self._overlap.load_state(moves)
        elif moves:  # saved with overlap: the center has them already
            for buffer, move in zip(self.flat.buffers, moves, strict=True):
                buffer.master.subtract(move)

    def _share(self) -> None:
        self.exchange()

    def _end(self) -> None:
        if self._overlap is not None:
            try:
                self._overlap.settle()
            except Exception:  # an interrupt ends the wait
                self._overlap.close()
                raise
            self._overlap.close()
