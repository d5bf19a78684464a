"""An optimizer around an optimizer: what every wrapper is to schedulers, scalers and users."""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.checks import check_model, check_optimizer
from smbox_torch.model.digest import digest
from smbox_torch.model.worker_values import WorkerValues
from smbox_torch.optimizer.checkpoint import is_plain
from smbox_torch.optimizer.state_hooks import HookedOptimizer
from smbox_torch.optimizer.torch_group import warn_if_both_communicate
from smbox_torch.world import World

__all__ = ["WrappedOptimizer"]


class WrappedOptimizer(HookedOptimizer):
    """A ``torch.optim.Optimizer`` whose groups and state are those of the optimizer inside.

    Hooks of steps, saving and loading are called as an optimizer of torch calls them, with the
    wrapper and its whole state.

    A subclass says in ``_advance`` what one step is, and in ``close`` how it ends. Once it has
    given the model its first values it calls ``_remember``: ``step`` then refuses a model that
    was changed before the first step. One whose model others may change does not call it.

    Args:
        optimizer: does the local steps; its ``step`` must do without a closure.
        model: whose parameters they are, or None.
        group: the process group that a step averages over, or None.

    Attributes:
        inner: the optimizer inside.
        rank: of this worker, as the launcher tells; 0 without one.

    Raises:
        TypeError: these are no optimizer and no model.
        ConfigError: the optimizer evaluates the model several times a step, as LBFGS does.
    """

    _given: int | None = None
    """Digest of the values that the model was given, until the first step."""

    _own: WorkerValues | None = None
    """The worker's values while :meth:`eval` lends its model; None: that model is evaluated."""

    _has_ended = _is_closed = False
    """Whether ``finish`` has waited for the others; whether this worker has left them."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        model: torch.nn.Module | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        check_optimizer(optimizer)
        check_model(model)
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ConfigError(
                "one step here is one gradient: take an optimizer whose step needs no closure",
                optimizer=type(optimizer).__name__,
            )
        self.inner = optimizer
        self._may_warn = group is None  # until the first step
        self.rank = World.from_env(os.environ).rank
        self._adopt()
        self._wrapped = tuple(self._members())

    def _adopt(self) -> None:
        """Take groups and state of the optimizer inside; they are the same objects."""
        inner = self.inner
        super().__setstate__(
            {
                "defaults": inner.defaults,
                "state": inner.state,
                "param_groups": inner.param_groups,
            }
        )

    def __getstate__(self) -> dict[str, Any]:
        """Refuse copy and pickle: a worker's place among the others cannot be doubled."""
        raise ConfigError(
            "a wrapped optimizer is neither copied nor pickled: save its state_dict(), and "
            "load it into an optimizer that is wrapped there",
            optimizer=type(self).__name__,
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step.

        Args:
            closure: evaluates the model once and returns the loss; optional.

        Returns:
            What the closure returned.

        Raises:
            ConfigError: the optimizer was closed, or ``finish`` was called and has failed; the
                model was changed after the optimizer was wrapped, holds the center since
                :meth:`eval`, the optimizer inside was given other parameters, or a gradient is
                sparse that the optimizer inside needs dense; nothing was exchanged, and the
                model stays as it is.
            LeaseLostError: another process has this worker's rank; nothing was exchanged.
        """
        self._demand_open()
        self._demand_wrapped()
        if self._own is not None:
            self._own.check()
        if self._may_warn:
            self._may_warn = False
            warn_if_both_communicate()
        self._demand_unchanged()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._demand_gradients()
        with torch.no_grad():
            self._advance()
        return loss

    def _demand_open(self) -> None:
        """Raise ConfigError if this worker has ended its run."""
        if self._is_closed:
            raise ConfigError("the optimizer was closed: wrap the inner one again to go on")
        if self._has_ended:
            raise ConfigError(
                "finish was called, and this worker does no step after it: call finish again,"
                " or close and wrap the inner one again to go on"
            )

    def _demand_finishable(self) -> None:
        """Raise ConfigError if this worker has left the others."""
        if self._is_closed:
            raise ConfigError("the optimizer was closed: finish instead of closing")

    def _members(self) -> Iterator[torch.Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _remember(self) -> None:
        """Note the model's values as those that the first step is to find."""
        self._given = digest(self._members())

    def _remember_filled(self, model: torch.nn.Module) -> None:
        """Note the values again, before the first step, if the filled model is the own one."""
        own = {id(parameter) for parameter in self._members()}
        if self._given is not None and any(id(p) in own for p in model.parameters()):
            self._remember()

    def _demand_unchanged(self) -> None:
        """Raise ConfigError, before the first step, if the model is not what it was given."""
        if self._given is None:
            return
        if digest(self._members()) != self._given:
            raise ConfigError(
                "the model was changed after the optimizer was wrapped: load the model before. "
                "To go on with a run use the optimizer's load_state_dict",
                optimizer=type(self).__name__,
            )
        self._given = None

    def _demand_wrapped(self) -> None:
        """Raise ConfigError if the optimizer inside has other parameters than were wrapped."""
        found = tuple(self._members())
        if len(found) != len(self._wrapped) or any(map(operator.is_not, found, self._wrapped)):
            raise ConfigError(
                "the optimizer inside has other parameters than when it was wrapped, which no"
                " other worker knows: add parameter groups first, then wrap",
                optimizer=type(self).__name__,
                parameters=len(found),
                wrapped=len(self._wrapped),
            )

    def _demand_gradients(self) -> None:
        """Raise ConfigError if the gradients are none that a step can be made along."""

    def _advance(self) -> None:
        """Do one step; gradients are in place."""
        raise NotImplementedError

    @torch.no_grad()
    def eval(self) -> None:
        """Put the center into the model, to evaluate or save it; the worker's values are kept.

        The model keeps what it was given until :meth:`train`; ``step`` and exchanges raise
        ConfigError meanwhile, and ``state_dict`` tells the worker's own values as ever. Where
        all workers have one model, nothing changes.

        Raises:
            SmboxError: the center cannot be read; the model is as it was.
        """
        if self._own is not None:
            self._own.replace(self._take_center)

    @torch.no_grad()
    def train(self) -> None:
        """Put the worker's own values back into the model; harmless if they are there."""
        if self._own is not None:
            self._own.restore()

    def _take_center(self) -> None:
        """Set the worker's own model to the center."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's
        """Clear the gradients."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002 - torch's
        """Refuse: what is shared is fixed when the optimizer is wrapped."""
        raise ConfigError("wrap the optimizer after all parameter groups have been added")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer inside."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the optimizer inside; the model stays as it is.

        Raises:
            ConfigError: it does not fit the optimizer inside; nothing was changed.
        """
        self._load_inner(state_dict)

    def _load_inner(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a plain optimizer into the one inside."""
        if not is_plain(state_dict):
            raise ConfigError(
                "this is no state of a torch.optim optimizer: no 'state' and 'param_groups'",
                keys=sorted(map(str, state_dict)),
            )
        try:
            self.inner.load_state_dict(state_dict)
        except ValueError as error:
            raise ConfigError(
                "this state is of an optimizer with other parameter groups: build the model "
                f"and its groups as they were when it was saved ({error})",
                optimizer=type(self.inner).__name__,
            ) from error
        self._adopt()

    def close(self) -> None:
        """Leave the other workers. Idempotent."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
