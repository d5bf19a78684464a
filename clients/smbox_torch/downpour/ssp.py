"""SSP: stale synchronous parallel, bounded staleness with read-my-writes.

Ho et al.: More effective distributed ML via a stale synchronous parallel parameter server,
NIPS 2013; verbs as in Petuum's Bosen. x the worker's copy of the parameters, c the center,
k the worker's clock, s the staleness:

    every step:   x = x - lr * gradient                 (the optimizer inside; any will do)
    clock():      c = c + (what x moved);  k = k + 1;
                  if x was fetched when the slowest clock was below k - s:
                      wait until the slowest clock is k - s;  x = c

So at clock k a worker sees every move of clocks up to k - s - 1 and all of its own, and the
fastest is never more than s clocks ahead of the slowest. s = 0 is synchronous (BSP), without
a barrier. Variant: moves are pushed at the clock, not between; the server pushes nothing.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch

from smbox_torch.boxes import BoxLike
from smbox_torch.checks import seconds, whole
from smbox_torch.downpour.pending_update import PendingUpdate
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.wrapper import BoxOptimizer
from smbox_torch.workers.clocks import Clocks

__all__ = ["SSP"]

TIMEOUT_S = 300.0
"""Longest wait for the slowest worker."""


class SSP(BoxOptimizer):
    """Workers that may differ by ``staleness`` clocks, and no more.

    Args:
        optimizer: does the local steps.
        box: the memory.
        name: of the run.
        staleness: clocks that the fastest may be ahead of the slowest.
        period: steps of one clock; None: only :meth:`clock` ends a clock.
        rank: of this worker; None: the launcher's, else the lowest that is free.
        timeout_s: longest wait for the slowest, in seconds.
        options: model, workers, lease_s: see BoxOptimizer. Workers that are alive are waited
            for; buffers move elastically at each clock.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        staleness: int = 3,
        period: int | None = 1,
        rank: int | None = None,
        timeout_s: float = TIMEOUT_S,
        **options: Unpack[BoxOptions],
    ) -> None:
        staleness = whole("staleness", staleness, least=0)
        period = None if period is None else whole("period", period)
        timeout_s = seconds("timeout_s", timeout_s)
        super().__init__(optimizer, box, name, rank=rank, **options)
        self.staleness = staleness
        self.period = period
        self.timeout_s = timeout_s
        self.clocks = Clocks(box, f"{name}.clocks", self.team)
        self._update = PendingUpdate(self.flat)
        self._fetched_at = self.clocks.slowest()

    def _advance(self) -> None:
        self._local_step()
        if self.period is not None and self.steps % self.period == 0:
            self.clock()

    @torch.no_grad()
    def clock(self) -> None:
        """End a clock: push what x moved, and fetch if x would be too old.

        Raises:
            RequestTimeoutError: a worker stayed behind; the push is done, the fetch is not.
        """
        with self._exchanging(self.center.sent_nbytes), self._update.collecting():
            self._push()
            now = self.clocks.tick()
            self._note_shared()
            oldest = now - self.staleness
            if self._fetched_at < oldest:
                self._fetched_at = self.clocks.wait(oldest, self.timeout_s)
                self._fetch()
        self.recorder.behind(self.center.behind())

    def _push(self) -> None:
        sent = self.center.operands(self._update.pending)
        for region, moved in zip(self.center.regions, sent, strict=True):
            region.accumulate(moved)
        self._update.clear()
        self._average_buffers()

    def _fetch(self) -> None:
        self.center.read(self._update.base)
        self._update.load_base()
        self.recorder.nbytes += self.center.sent_nbytes

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model; the worker's own goes on from there."""
        with self._update.ignoring_changes():
            super().center_into(model)

    def _extra_state(self) -> dict[str, Any]:
        return {"moves": self._update.state(), "age": self.clocks.mine - self._fetched_at}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        self._update.load_state(extra["moves"])
        self._fetched_at = self.clocks.mine - extra["age"]

    def _forget_unshared(self) -> None:
        self._update.reset()

    def _share(self) -> None:
        with self._exchanging(self.center.sent_nbytes), self._update.collecting():
            self._push()
        self._note_shared()

    def _end(self) -> None:
        self.clocks.leave()
