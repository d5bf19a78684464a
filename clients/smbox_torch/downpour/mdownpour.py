"""MDOWNPOUR: Downpour with Nesterov's momentum at the center.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, comparators; n_push = n_fetch = 1 only. c the center, v its velocity, u the
local step (-lr * gradient) of a worker, momentum the paper's delta:

    gradient taken at  x = c + momentum * v
    after every step:  v = momentum * v + u;   c = c + v;   x = c + momentum * v

Variant: v is updated by an elastic exchange. With r = 1 - momentum, the exchange of s = u / r
moves v by d = r (s - v), so that the new v is momentum * v + u. The worker computes the new v
from the answer, (s - d / r) + d, and adds it to c in a second operation. Each operation is
atomic, so no step is lost with any number of workers; only the order of the additions to c may
differ from the order of the velocities.

Changes of x between two steps that the inner optimizer did not make (clipping, a load) are not
part of u: they are added to c once and do not enter v.

v exists only in the memory. A worker that joins a running run begins at x = c + momentum * v,
with the current v.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Unpack

import numpy as np
import torch

from smbox_torch import checks
from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.downpour.downpour import Downpour
from smbox_torch.downpour.pending_update import PendingUpdate
from smbox_torch.optimizer.center import Center, Shared
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.plain_sgd import check_plain_sgd, check_settings

__all__ = ["MDownpour"]

MOMENTUM = 0.99
"""The paper's delta."""

REFUSED: Final = ("momentum", "dampening", "nesterov")
"""Settings of torch.optim.SGD that are rejected: the pushed step is -lr * gradient."""


class MDownpour(Downpour):
    """Downpour with Nesterov momentum at the center.

    Args:
        optimizer: ``torch.optim.SGD`` without momentum; it does the local steps.
        box: the memory box.
        name: name of the run.
        momentum: the paper's delta, in [0, 1); the same on all workers.
        options: model, workers and others: see BoxOptimizer.

    Raises:
        ConfigError: the optimizer is not SGD, or has momentum; nothing was created. From
            ``step``: a scheduler or a loaded state has given it momentum; nothing was changed.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        momentum: float = MOMENTUM,
        **options: Unpack[BoxOptions],
    ) -> None:
        check_plain_sgd(optimizer, "MDownpour", "Downpour", REFUSED)
        self.momentum = checks.momentum(momentum)
        super().__init__(optimizer, box, name, n_push=1, n_fetch=1, **options)
        self.velocity = Center(box, f"{name}.velocity", self.flat, init=0.0, loads=False)
        self._look_ahead()
        self._outside_changes = PendingUpdate(self.flat)
        self._remember()

    def _agreed(self) -> dict[str, object]:
        return super()._agreed() | {"momentum": self.momentum}

    def _look_ahead(self) -> None:
        """Move x from c to c + momentum * v."""
        velocities = self.velocity.values().values()
        with self._update.ignoring_changes():
            for buffer, v in zip(self.flat.buffers, velocities, strict=True):
                x = buffer.load()
                np.add(x, x.dtype.type(self.momentum) * as_array(v), out=x)
                buffer.store()

    def _advance(self) -> None:
        check_settings(self.inner, "MDownpour", REFUSED)
        self._begin_exchange()
        with self._outside_changes.collecting():
            self._outside_changes.push_if_any(self.center, self.recorder)
            self._update.rebase()
            try:
                super()._advance()
            finally:
                self._outside_changes.rebase()  # the step itself is not an outside change

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model; the worker's own model continues from it."""
        self._update.rebase()  # as in a step
        with self._outside_changes.ignoring_changes(since_now=self._is_unchanged()):
            super().center_into(model)

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        super()._load_extra_state(extra)
        self._outside_changes.reset()

    def _exchange_nbytes(self, *, push: bool, fetch: bool) -> int:
        beside = self.velocity.sent_nbytes + self.velocity.nbytes
        return super()._exchange_nbytes(push=push, fetch=fetch) + beside

    def _transfer(self, *, push: bool, fetch: bool) -> None:  # noqa: ARG002 - both, always
        vs = self._accelerate()
        sent, places = self.center.operands(vs), self._update.base
        for region, v, moved, place in zip(self.center.regions, vs, sent, places, strict=True):
            region.accumulate(moved, out=place)
            np.multiply(v, v.dtype.type(self.momentum), out=v)
            np.add(place, v, out=place)
        self._update.clear()
        self._update.load_base()

    def _accelerate(self) -> list[Array]:
        """Set v = momentum * v + u at the memory; return the new v of each buffer."""
        rates = [u.dtype.type(1.0 - self.momentum) for u in self._update.pending]
        moves = zip(self.velocity.senders, self._update.pending, rates, strict=True)
        vs = []
        for region, (sender, u, rate) in zip(self.velocity.regions, moves, strict=True):
            with sender.sending(u / rate) as s:
                d = region.elastic(s, float(rate), delta=np.empty(s.shape, region.dtype))
            vs.append((s - d / rate) + d)
        return vs

    def _shared(self) -> Iterator[Shared]:
        yield from super()._shared()
        yield self.velocity
