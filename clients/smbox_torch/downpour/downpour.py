"""Downpour SGD: workers do local steps, push their updates to the center, and fetch it.

Dean et al.: Large scale distributed deep networks (DistBelief), NIPS 2012; the order of steps
is that of the comparison in arXiv:1412.6651 and its reference code (mpiT). x the worker's
parameters, c the center:

    every step:            x = x - lr * gradient        (by the inner optimizer; any is allowed)
    after n_push steps:    c = c + (change of x since the last push)
    after n_fetch steps:   x = c

If both are due they are one atomic operation (accumulate with ``out=``), so that x is the
center right after this worker's push. DistBelief sends gradients, and the server steps. Here
the worker sends the change of its parameters, which is equivalent for SGD, and the memory only
adds.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch

from smbox_torch.boxes import BoxLike
from smbox_torch.checks import whole
from smbox_torch.downpour.pending_update import PendingUpdate
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.wrapper import BoxOptimizer

__all__ = ["Downpour"]


class Downpour(BoxOptimizer):
    """Asynchronous SGD on a shared center. Stable for small n_push and n_fetch only.

    Every change of the parameters is pushed like a step, by each worker that makes it, except
    that of ``center_into`` with the worker's own model.

    Args:
        optimizer: the inner optimizer; it does the local steps.
        box: the memory box.
        name: name of the run.
        n_push: steps between two pushes (the papers find 1 to 4 good, 16 and more unstable).
        n_fetch: steps between two fetches.
        options: model, workers and others: see BoxOptimizer. Buffers are exchanged elastically
            at each push.

    Raises:
        TypeError, ConfigError: n_push or n_fetch is not an integer of at least 1.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        n_push: int = 1,
        n_fetch: int = 1,
        **options: Unpack[BoxOptions],
    ) -> None:
        n_push, n_fetch = whole("n_push", n_push), whole("n_fetch", n_fetch)
        super().__init__(optimizer, box, name, **options)
        self.n_push = n_push
        self.n_fetch = n_fetch
        self._update = PendingUpdate(self.flat)

    def _advance(self) -> None:
        self._local_step()
        push, fetch = self.steps % self.n_push == 0, self.steps % self.n_fetch == 0
        if push or fetch:
            self._exchange(push=push, fetch=fetch)

    def _exchange(self, *, push: bool, fetch: bool) -> None:
        nbytes = self._exchange_nbytes(push=push, fetch=fetch)
        with self._exchanging(nbytes), self._update.collecting():
            self._transfer(push=push, fetch=fetch)
            if push:
                self._average_buffers()
        if push:
            self._note_shared()
        self.recorder.behind(self.center.behind(mine=int(push)))

    def _exchange_nbytes(self, *, push: bool, fetch: bool) -> int:
        """Return the bytes of an exchange; the answer to push and fetch is the center."""
        return self.center.sent_nbytes + (self.center.nbytes if push and fetch else 0)

    def _transfer(self, *, push: bool, fetch: bool) -> None:
        """Push, fetch, or do both in one operation."""
        if push:
            self._update.push(self.center, fetch=fetch)
        else:
            self.center.read(self._update.base)
        if fetch:
            self._update.load_base()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the values to evaluate into a model; the own model continues from them."""
        with self._update.ignoring_changes(since_now=self._is_unchanged()):
            super().center_into(model)

    def _share(self) -> None:
        self._exchange(push=True, fetch=True)

    def _extra_state(self) -> dict[str, Any]:
        return {"moves": self._update.state()}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        self._update.load_state(extra["moves"])

    def _forget_unshared(self) -> None:
        self._update.reset()
