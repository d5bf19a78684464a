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

import time
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.boxes import BoxLike
from smbox_torch.elastic import default_workers, moving_rate_or_default
from smbox_torch.update_thread import UpdateThread
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
        workers: number of workers; None: WORLD_SIZE, else 1.
        overlap: hide the exchange behind the next gradient, on an update thread.
        model: also exchange its batch-norm buffers.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        period: int = 10,
        moving_rate: float | None = None,
        workers: int | None = None,
        overlap: bool = False,
        model: torch.nn.Module | None = None,
    ) -> None:
        if period < 1:
            raise ConfigError("period must be at least 1", period=period)
        self.period = period
        self.moving_rate = moving_rate_or_default(moving_rate, default_workers(workers))
        super().__init__(optimizer, box, name, model=model, workers=workers)
        self._overlap = _Overlap(self) if overlap else None

    def _advance(self) -> None:
        if self._overlap is not None:
            self._overlap.settle()
        if self.steps % self.period == 0:
            self.exchange()
        self._local_step()

    def exchange(self) -> None:
        """Do one exchange now, whatever the period says (with overlap: begin it)."""
        if self._overlap is not None:
            self._begin_exchange()
            self._overlap.begin()
            return
        with torch.no_grad(), self._exchanging(2 * self.nbytes):
            for buffer, region in self.pairs():
                region.elastic(buffer.load(), self.moving_rate)
                buffer.store()
        self.recorder.behind(self.center.behind())

    def _extra_state(self) -> dict[str, Any]:
        return {} if self._overlap is None else {"moves": self._overlap.state()}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        if self._overlap is not None:
            self._overlap.load_state(extra.get("moves"))

    def close(self) -> None:
        """Finish the exchange under way, so that worker and center are consistent."""
        if self._overlap is not None:
            self._overlap.settle()
            self._overlap.close()


class _Overlap:
    """An exchange on an update thread: a copy of x goes out, the move d comes back."""

    def __init__(self, owner: EASGD) -> None:
        self._owner = owner
        self._thread = UpdateThread()
        buffers = [buffer for buffer, _ in owner.pairs()]
        self._copies = [buffer.host.copy() for buffer in buffers]
        self._moves = [torch.empty_like(b.flat, device="cpu") for b in buffers]
        self._pending = False

    def begin(self) -> None:
        """Copy x and send it on its way."""
        for copy, (buffer, _) in zip(self._copies, self._owner.pairs(), strict=True):
            copy[:] = buffer.load()
        self._pending = True
        self._thread.begin(self._run)

    def _run(self) -> None:
        owner = self._owner
        for copy, move, (_, region) in zip(
            self._copies, self._moves, owner.pairs(), strict=True
        ):
            region.elastic(copy, owner.moving_rate, delta=as_array(move))
        owner.recorder.behind(owner.center.behind())

    def _finish(self) -> None:
        """Wait for the exchange under way and count it."""
        if not self._thread.busy:
            return
        self._thread.finish()
        recorder = self._owner.recorder
        recorder.exchange(took_s=self._thread.took_s, nbytes=2 * self._owner.nbytes)
        recorder.waited(self._thread.waited_s)

    def settle(self) -> None:
        """Wait for the exchange under way and move x by its d."""
        if not self._pending:
            return
        self._finish()
        began_s = time.monotonic()
        with torch.no_grad():
            for move, (buffer, _) in zip(self._moves, self._owner.pairs(), strict=True):
                buffer.flat.sub_(move.to(buffer.flat.device))
        self._pending = False
        self._owner.recorder.waited(time.monotonic() - began_s)

    def state(self) -> list[torch.Tensor] | None:
        """Return the moves that are not subtracted yet, or None."""
        self._finish()
        return [move.clone() for move in self._moves] if self._pending else None

    def load_state(self, moves: list[torch.Tensor] | None) -> None:
        """Take moves that are still to be subtracted."""
        self._finish()
        self._pending = moves is not None
        for mine, move in zip(self._moves, moves or self._moves, strict=True):
            mine.copy_(move)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()
