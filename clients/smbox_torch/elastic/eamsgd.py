"""EAMSGD: elastic averaging with Nesterov's momentum.

Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, NIPS 2015,
arXiv:1412.6651, section 3 and algorithm 2 (asynchronous). x the worker's parameters, v their
velocity, c the center, momentum the paper's delta:

    g at y = x + momentum * v                         (the model holds y between two steps)
    every period steps:  d = moving_rate (x - c);  c += d;  x -= d          (one atomic op)
    every step:          v = momentum * v - lr * g;   x = x + v

Variant: asynchronous, with a fused exchange of x (not of y) and the elastic move first. Weight
decay of the inner optimizer's groups is added to g, at y. With momentum 0 this is EASGD.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Unpack

import torch

from smbox_torch import checks
from smbox_torch.boxes import Array, BoxLike
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.plain_sgd import check_plain_sgd, check_settings

__all__ = ["EAMSGD"]

MOMENTUM = 0.9
"""Measured (docs/algorithms/eamsgd.md): at equal lr / (1 - momentum), the paper's 0.99 is not
better, and with 0.9 the learning rate is the usual one of SGD with momentum."""

IGNORED: Final = ("momentum", "dampening", "nesterov", "maximize")
"""Settings of torch.optim.SGD that this step would ignore."""


class Holds(enum.Enum):
    """What the model holds; with EITHER, x in ``_x`` is right."""

    Y = enum.auto()
    X = enum.auto()
    EITHER = enum.auto()


class EAMSGD(EASGD):
    """Elastic averaging with Nesterov momentum on the workers.

    The model holds y. A change of the model between two steps (a load, clipping) changes y, and
    x changes with it; the velocity is kept, as in torch's SGD with momentum.

    Args:
        optimizer: a ``torch.optim.SGD`` without momentum. It provides the parameters, and lr
            and weight decay by group (schedulers may change them). Its step is not called.
        box: the memory box.
        name: name of the run.
        momentum: the paper's delta, in [0, 1). Scale the learning rate with 1 - momentum: in
            total, a gradient moves x by lr / (1 - momentum).
        period: local steps between two exchanges.
        moving_rate: share of the distance that worker and center move; None: 0.45.
        overlap: run the exchange while the gradient at y is computed; see EASGD.
        options: model, workers and others: see BoxOptimizer. Buffers are exchanged like
            parameters.

    Raises:
        ConfigError: another optimizer, or a setting or step hook of SGD that would be ignored.
            From ``step``: a sparse gradient in a group with weight decay, or there is such a
            setting (of a scheduler or a loaded state) or hook now; nothing was changed.
    """

    def __init__(
        self,
        optimizer: torch.optim.SGD,
        box: BoxLike,
        name: str,
        *,
        momentum: float = MOMENTUM,
        period: int = 1,
        moving_rate: float | None = None,
        overlap: bool = False,
        **options: Unpack[BoxOptions],
    ) -> None:
        check_plain_sgd(optimizer, "EAMSGD", "EASGD", IGNORED)
        checks.check_step_hooks(optimizer, "EAMSGD")
        momentum = checks.momentum(momentum)
        super().__init__(
            optimizer,
            box,
            name,
            period=period,
            moving_rate=moving_rate,
            overlap=overlap,
            **options,
        )
        self.momentum = momentum
        self._x = [buffer.wide.clone() for buffer in self.flat.buffers]
        self._v = [torch.zeros_like(x) for x in self._x]
        self._holds = Holds.Y
        self._gradients: dict[int, torch.Tensor] = {}

    def _advance(self) -> None:
        check_settings(self.inner, "EAMSGD", IGNORED)
        checks.check_step_hooks(self.inner, "EAMSGD")
        self._gradients = self._decayed()
        try:
            with self._at_x():
                super()._advance()
        finally:
            self._gradients = {}

    def exchange(self) -> None:
        """Do one exchange of x now; see EASGD."""
        self._begin_exchange()  # before x replaces y
        with self._at_x():
            super().exchange()

    def prepare(self) -> Sequence[Array]:
        """Return a copy of x: the model holds y while the gradient is computed."""
        return [x.copy() for x in super().prepare()]

    @contextmanager
    def _at_x(self) -> Iterator[None]:
        """Put x into the model for the block; afterwards put y = x + momentum v into it."""
        self._put_y()  # an interrupt may have stopped the last call
        self._follow()
        try:
            self._put_x()
            yield
        finally:
            self._put_y()

    def _put_x(self) -> None:
        self._holds = Holds.EITHER
        for buffer, x in zip(self.flat.buffers, self._x, strict=True):
            buffer.wide.copy_(x)
            buffer.master.narrow()
        self._holds = Holds.X

    def _put_y(self) -> None:
        if self._holds is Holds.X:
            for buffer, x in zip(self.flat.buffers, self._x, strict=True):
                x.copy_(buffer.wide)
            self._holds = Holds.EITHER
        if self._holds is Holds.EITHER:
            for buffer, x, v in zip(self.flat.buffers, self._x, self._v, strict=True):
                torch.add(x, v, alpha=self.momentum, out=buffer.wide)
                buffer.master.narrow()
            self._holds = Holds.Y

    def _follow(self) -> None:
        """Set x = y - momentum v where y was changed since the last step."""
        for buffer, x, v in zip(self.flat.buffers, self._x, self._v, strict=True):
            y = buffer.master.values()
            is_mine = y == torch.add(x, v, alpha=self.momentum)  # there x stays exact
            x.copy_(torch.where(is_mine, x, torch.sub(y, v, alpha=self.momentum)))

    def _decayed(self) -> dict[int, torch.Tensor]:
        """Return the gradients, with weight decay at y, by id of the parameter.

        ``parameter.grad`` is not changed: a user may read it after the step.
        """
        gradients = {}
        for group in self.param_groups:
            decay = group["weight_decay"]
            for p in group["params"]:
                if p.grad is not None:
                    gradients[id(p)] = p.grad.add(p, alpha=decay) if decay else p.grad
        return gradients

    def _local_step(self) -> None:
        """Move v and x, in the center's dtype."""
        for x, g, v, lr in self._moving():
            v.mul_(self.momentum).add_(g, alpha=-lr)
            x.add_(v)
        self._count_step()

    def _moving(
        self,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]]:
        """Yield x, gradient, velocity and learning rate of each parameter with a gradient."""
        lr = {id(p): group["lr"] for group in self.param_groups for p in group["params"]}
        for buffer, velocity in zip(self.flat.buffers, self._v, strict=True):
            xs, vs = buffer.split(buffer.wide), buffer.split(velocity)
            for p, x, v in zip(buffer.tensors, xs, vs, strict=True):
                if id(p) in self._gradients:
                    yield x, self._gradients[id(p)], v, float(lr[id(p)])

    def _end(self) -> None:
        with self._at_x():
            super()._end()

    def _extra_state(self) -> dict[str, Any]:
        own = {"x": [x.clone() for x in self._x], "v": [v.clone() for v in self._v]}
        return {**super()._extra_state(), **own}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        super()._load_extra_state(extra)
        for mine, saved in zip(self._x + self._v, extra["x"] + extra["v"], strict=True):
            mine.copy_(saved)
