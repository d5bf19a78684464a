"""SSP: stale synchronous parallel, bounded staleness with read-my-writes.

Ho et al.: More effective distributed ML via a stale synchronous parallel parameter server,
NIPS 2013; verbs as in Petuum's Bosen. x the worker's copy of the parameters, c the center,
k the worker's clock, s the staleness:

    every step:   x = x - lr * gradient                 (by the inner optimizer; any is allowed)
    clock():      c = c + (change of x since the last clock);  k = k + 1;
                  if x was fetched when the slowest clock was below k - s:
                      wait until the slowest clock is k - s;  x = c

So at clock k a worker sees every update of clocks up to k - s - 1 and all of its own updates.
The fastest worker is never more than s clocks ahead of the slowest. s = 0 is synchronous (BSP),
without a barrier. Variant: workers push at the clock only, and the server pushes nothing.
"""

from __future__ import annotations

from functools import partial
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
    """Asynchronous SGD with bounded staleness.

    Args:
        optimizer: the inner optimizer; it does the local steps.
        box: the memory box.
        name: name of the run.
        staleness: clocks that the fastest worker may be ahead of the slowest.
        period: steps per clock; None: only :meth:`clock` ends a clock.
        timeout_s: longest wait for the slowest worker, in seconds.
        options: model, workers, rank and others: see BoxOptimizer. Only live workers are
            waited for. Buffers are exchanged elastically at each clock.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        staleness: int = 3,
        period: int | None = 1,
        timeout_s: float = TIMEOUT_S,
        **options: Unpack[BoxOptions],
    ) -> None:
        staleness = whole("staleness", staleness, least=0)
        period = None if period is None else whole("period", period)
        timeout_s = seconds("timeout_s", timeout_s)
        self._clocks_of = partial(Clocks, box, f"{name}.clocks")
        super().__init__(optimizer, box, name, **options)
        self.staleness = staleness
        self.period = period
        self.timeout_s = timeout_s
        self._update = PendingUpdate(self.flat)
        self._fetched_at = self.clocks.slowest()

    def _join(self) -> None:
        """Set the clock at once: until then others may see that of an earlier run."""
        super()._join()
        self.clocks = self._clocks_of(self.team)

    def _advance(self) -> None:
        self._local_step()
        if self.period is not None and self.steps % self.period == 0:
            self.clock()

    @torch.no_grad()
    def clock(self) -> None:
        """End a clock: push the change of x, and fetch the center if x is too old.

        Raises:
            RequestTimeoutError: a worker is too far behind, and the push was done; or the node
                did not answer: the next clock pushes what the center lacks.
        """
        with self._exchanging(self.center.sent_nbytes), self._update.collecting():
            self._push()
            now = self.clocks.tick()
            self._note_shared()
            oldest = now - self.staleness
            if self._fetched_at < oldest:
                with self.recorder.waiting_for_others():
                    self._fetched_at = self.clocks.wait(oldest, self.timeout_s)
                self._fetch()
        self.recorder.behind(self.center.behind())

    def _push(self) -> None:
        self._update.push(self.center)
        self._average_buffers()

    def _fetch(self) -> None:
        self.center.read(self._update.base)
        self._update.load_base()
        self.recorder.nbytes += self.center.sent_nbytes

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model; the worker's own model continues from it."""
        with self._update.ignoring_changes(since_now=self._is_unchanged()):
            super().center_into(model)

    def _extra_state(self) -> dict[str, Any]:
        fetched_at = self._fetched_at
        age = self.clocks.mine - fetched_at
        return {"moves": self._update.state(), "age": age, "fetched_at": fetched_at}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        self._update.load_state(extra["moves"])
        # Clocks begin at 0 again in a new memory; in the same one, x is as old as it was.
        self._fetched_at = min(self.clocks.mine - extra["age"], extra["fetched_at"])

    def _forget_unshared(self) -> None:
        self._update.reset()

    def _share(self) -> None:
        with self._exchanging(self.center.sent_nbytes), self._update.collecting():
            self._push()
        self._note_shared()

    def _end(self) -> None:
        self.clocks.leave()
