"""MDOWNPOUR: Downpour with Nesterov's momentum at the center.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, comparators; n_push = n_fetch = 1 only. c the center, v its velocity, u the
local step (-lr * gradient) of a worker, momentum the paper's delta:

    gradient taken at  x = c + momentum * v
    after every step:  v = momentum * v + u;   c = c + v;   x = c + momentum * v

Variant: the memory has no momentum operation, and needs none. With r = 1 - momentum the
elastic exchange of s = u / r moves v by d = r (s - v), which is momentum * v + u; the worker
finds its v in the answer, (s - d / r) + d, and adds it to c with a second operation. Each is
atomic, so no step is lost with any number of workers; only the order of additions to c may
differ from the order of the velocities.

What others than the optimizer inside change in x between two steps (clipping, a load) is no u:
it is added to c once, and v does not repeat it.

v lives in the memory, and no worker keeps one of its own: whoever joins a run that is under way
begins at x = c + momentum * v, with the v of that moment.
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
from smbox_torch.optimizer.plain_sgd import check_plain_sgd

__all__ = ["MDownpour"]

MOMENTUM = 0.99
"""The paper's delta."""

REFUSED: Final = ("momentum", "dampening", "nesterov")
"""Of SGD's settings: the step that is pushed is -lr * gradient."""


class MDownpour(Downpour):
    """Downpour whose center has momentum.

    Args:
        optimizer: does the local steps; SGD without momentum.
        box: the memory.
        name: of the run.
        momentum: in [0, 1); the same on all workers.
        options: model, workers: see BoxOptimizer.

    Raises:
        ConfigError: another optimizer than SGD, or one with momentum; nothing was made.
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
        super().__init__(optimizer, box, name, **options)
        self.velocity = Center(box, f"{name}.velocity", self.flat, init=0.0, leads=False)
        self._look_ahead()
        self._outside_changes = PendingUpdate(self.flat)
        self._remember()

    def _agreed(self) -> dict[str, object]:
        return super()._agreed() | {"momentum": self.momentum}

    def _look_ahead(self) -> None:
        """Move x from c, which it was set to, to c + momentum * v."""
        velocities = self.velocity.values().values()
        with self._update.ignoring_changes():
            for buffer, v in zip(self.flat.buffers, velocities, strict=True):
                x = buffer.load()
                np.add(x, x.dtype.type(self.momentum) * as_array(v), out=x)
                buffer.store()

    def _advance(self) -> None:
        self._begin_exchange()
        self._outside_changes.collect()
        self._outside_changes.push_to(self.center)
        self._update.rebase()
        try:
            super()._advance()
        finally:
            self._outside_changes.rebase()  # what the step moved is no change

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model; the worker's own goes on from there."""
        with self._outside_changes.ignoring_changes():
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
        moves = zip(self._update.pending, rates, strict=True)
        sent = self.velocity.operands([u / rate for u, rate in moves])
        vs = []
        for region, s, rate in zip(self.velocity.regions, sent, rates, strict=True):
            d = region.elastic(s, float(rate), delta=np.empty(s.shape, region.dtype))
            vs.append((s - d / rate) + d)
        return vs

    def _shared(self) -> Iterator[Shared]:
        yield from super()._shared()
        yield self.velocity
