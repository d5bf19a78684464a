"""Downpour with an optimizer at the memory: workers push gradients, and the memory steps.

Dean et al.: Large scale distributed deep networks (DistBelief), NIPS 2012, algorithm 7.1, with
the paper's Adagrad at the server. x the worker's parameters, a the sum of its gradients, c the
center, f the server's step with its state beside c (smbox/memory/kernels.py):

    every step:            a = a + gradient;   x = x - lr * gradient   (by the inner optimizer)
    after n_push steps:    c = f(c + e, a);    a = 0;    e = 0
    after n_fetch steps:   x = c

Adagrad at the server:     s = s + a a;        c = c - lr a / (sqrt(s) + eps);    initial s: 0.1

e is the change of x between steps that the inner optimizer did not make (clipping, a load). It
is added to c directly, because the gradients do not contain it. The paper has no e.

Variant: with an initial s of 0, as in Duchi et al. and torch, the first push moves every weight
by lr, even if its gradient is tiny. The paper warms up one worker alone instead. 0.1 is the
initial value of TensorFlow's Adagrad.

A step at the memory changes the parameters of a stripe and their state in one commit, so that
state and parameters always belong to the same step, for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Unpack

import numpy as np
import torch

from smbox.errors import ConfigError
from smbox.optimizer import code_of, settings_of
from smbox_torch.adapter import as_array, saved
from smbox_torch.boxes import Array, OptimizerLike, SteppingBoxLike
from smbox_torch.checks import check_optimizer, check_step_hooks, real, whole
from smbox_torch.downpour.partial_push import PartialPush
from smbox_torch.downpour.pending_update import PendingUpdate
from smbox_torch.model.sparse_gradients import check_dense
from smbox_torch.optimizer.center import Shared
from smbox_torch.optimizer.options import BoxOptions
from smbox_torch.optimizer.wrapper import BoxOptimizer

__all__ = ["ServerDownpour"]

SETTINGS: Final[dict[str, dict[str, float]]] = {"adagrad": {"initial_accumulator_value": 0.1}}
"""Defaults of the server's optimizers that differ from torch's."""


class ServerDownpour(BoxOptimizer):
    """Asynchronous SGD in which an optimizer at the memory steps the center.

    Args:
        optimizer: the inner optimizer; it does the local steps between two fetches (the paper:
            SGD). Its learning rate at the time of a push is also the server's, unless ``lr`` is
            given.
        box: the memory box.
        name: name of the run.
        server: "adagrad" (the paper's), "momentum", "nesterov" or "adam".
        lr: step size of the server; None: that of the optimizer's parameter group.
        n_push: steps between two pushes; the gradients in between are summed.
        n_fetch: steps between two fetches.
        settings: settings of the server's optimizer: momentum, eps, beta1, beta2 (default:
            torch's) and initial_accumulator_value, Adagrad's initial s (default: 0.1).
            ``server`` and ``settings`` must be the same on all workers.
        options: model, workers and others: see BoxOptimizer. Buffers are exchanged elastically
            at each push.

    Raises:
        ConfigError: invalid settings, an optimizer that maximizes or has step hooks,
            SparseAdam, or several learning rates without ``lr``. From ``step``: a scheduler
            made the learning rates differ, or the inner optimizer got a step hook.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: SteppingBoxLike,
        name: str,
        *,
        server: str = "adagrad",
        lr: float | None = None,
        n_push: int = 1,
        n_fetch: int = 1,
        settings: Mapping[str, float] | None = None,
        **options: Unpack[BoxOptions],
    ) -> None:
        n_push, n_fetch = whole("n_push", n_push), whole("n_fetch", n_fetch)
        check_optimizer(optimizer)
        check_dense(optimizer)
        check_step_hooks(optimizer, "ServerDownpour")
        if any(group.get("maximize") for group in optimizer.param_groups):
            raise ConfigError("the server steps against the gradients: negate the loss instead")
        if not isinstance(server, str):
            raise TypeError(f"server must be a str, not {type(server).__name__}")
        given = {key: real(key, value) for key, value in dict(settings or {}).items()}
        chosen = SETTINGS.get(server, {}) | given
        lr = None if lr is None else real("lr", lr)
        shown = settings_of(code_of(server), {"lr": _server_lr(optimizer, lr), **chosen})
        del shown["lr"]  # a schedule may change it
        self._server_settings = {"server": server, **shown}
        super().__init__(optimizer, box, name, gradients=True, **options)
        self.n_push = n_push
        self.n_fetch = n_fetch
        self._lr = lr
        self._servers: list[OptimizerLike] = [
            box.optimizer(region, server, lr=self.server_lr, **chosen)
            for region in self.center.regions
        ]
        self.gathered: list[Array] = [np.zeros_like(b.host) for b in self.flat.buffers]
        self._partial = PartialPush()
        self._outside_changes = PendingUpdate(self.flat)

    def _agreed(self) -> dict[str, object]:
        return super()._agreed() | self._server_settings

    @property
    def server_lr(self) -> float:
        """Step size of the server's next step.

        Raises:
            ConfigError: the parameter groups have several learning rates, and ``lr`` was not
                given.
        """
        return _server_lr(self.inner, self._lr)

    def _advance(self) -> None:
        check_step_hooks(self.inner, "ServerDownpour")
        self._settle()
        for buffer, gathered in zip(self.flat.buffers, self.gathered, strict=True):
            assert buffer.gradient is not None, "attached"
            np.add(gathered, as_array(buffer.gradient.cpu()), out=gathered)
        try:
            self._local_step()
        finally:
            self._outside_changes.rebase()  # the step itself is not an outside change
        push, fetch = self.steps % self.n_push == 0, self.steps % self.n_fetch == 0
        if push or fetch:
            self._exchange(push=push, fetch=fetch)

    def _settle(self) -> None:
        """Find out what to push; RequestTimeoutError if the node does not say what it has."""
        self._partial.settle(self.gathered)
        self._outside_changes.collect()

    def _exchange(self, *, push: bool, fetch: bool) -> None:
        with self._exchanging((push + fetch) * self.center.sent_nbytes):
            if push:
                self._push()
            if fetch:
                with self._outside_changes.collecting():
                    self.center.read(self._outside_changes.base)
                    self._outside_changes.load_base()
        if push:
            self._note_shared()
        self.recorder.behind(self.center.behind(mine=int(push)))

    def _push(self) -> None:
        lr = self.server_lr
        self._outside_changes.push_if_any(self.center, self.recorder)
        sent = self.center.operands(self.gathered)
        self._partial.push(
            self.gathered, sent, lambda at, gradient: self._servers[at].step(gradient, lr=lr)
        )
        self._clear()
        self._average_buffers()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center into a model; the worker's own model continues from it."""
        with self._outside_changes.ignoring_changes(since_now=self._is_unchanged()):
            super().center_into(model)

    def _share(self) -> None:
        self._settle()
        self._exchange(push=True, fetch=True)

    def _demand_loadable(self, state_dict: dict[str, Any], algorithm: str) -> None:
        super()._demand_loadable(state_dict, algorithm)
        saved_names, names = set(state_dict["centers"][-1]), set(self._servers[-1].states)
        if saved_names != names:
            raise ConfigError(
                "this state belongs to another optimizer at the memory: pass server= as it was"
                " passed when the state was saved",
                saved=sorted(saved_names),
                own=sorted(names),
            )

    def _shared(self) -> Iterator[Shared]:
        yield from super()._shared()
        yield from map(_State, self._servers)

    def _extra_state(self) -> dict[str, Any]:
        self._partial.settle(self.gathered)
        gathered = [saved(each) for each in self.gathered]
        return {"gathered": gathered, "changes": self._outside_changes.state()}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        for mine, kept in zip(self.gathered, extra["gathered"], strict=True):
            mine[...] = kept.cpu().numpy().view(mine.dtype)
        self._partial.forget()
        self._outside_changes.load_state(extra["changes"])

    def _forget_unshared(self) -> None:
        self._outside_changes.reset()
        self._clear()

    def _clear(self) -> None:
        """Set ``gathered`` to 0: the center has it, or another worker pushes it."""
        self._partial.forget()
        for gathered in self.gathered:
            gathered[...] = 0


def _server_lr(optimizer: torch.optim.Optimizer, lr: float | None) -> float:
    """Return ``lr``; if it is None, the only learning rate of the optimizer's groups."""
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if lr is None and len(rates) > 1:
        raise ConfigError("several learning rates: give the server's lr", lr=sorted(rates))
    return rates.pop() if lr is None else lr


class _State:
    """The state of a server's optimizer, as shared state of a checkpoint."""

    def __init__(self, server: OptimizerLike) -> None:
        self._server = server

    def values(self) -> dict[str, torch.Tensor]:
        states = self._server.states
        return {name: saved(state.get()) for name, state in states.items()}

    def put(self, values: dict[str, torch.Tensor]) -> None:
        for name, state in self._server.states.items():
            state.put(values[name].cpu().numpy().view(state.dtype))
