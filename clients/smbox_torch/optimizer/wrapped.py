"""WrappedOptimizer: the base class of all wrappers around a torch optimizer."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo

from smbox.deadline import deadline_given
from smbox.errors import ConfigError
from smbox_torch.checks import check_model, check_optimizer
from smbox_torch.model.digest import digest
from smbox_torch.model.order import order_of
from smbox_torch.model.others import forget_wrapped, note_wrapped
from smbox_torch.model.worker_values import WorkerValues
from smbox_torch.optimizer.checkpoint import demand_algorithm, load_inner
from smbox_torch.optimizer.state_hooks import HookedOptimizer
from smbox_torch.optimizer.torch_group import warn_if_both_communicate
from smbox_torch.world import World

__all__ = ["WrappedOptimizer"]


class WrappedOptimizer(HookedOptimizer):
    """A ``torch.optim.Optimizer`` that shares groups and state with an inner optimizer.

    Torch's hooks for steps, saving and loading get the wrapper and its complete state.

    A subclass implements one step in ``_advance`` and the end in ``close``. After it has set
    the initial values of the model it calls ``_remember``; ``step`` then rejects a model that
    was changed before the first step. A subclass whose model may change does not call it.

    Args:
        optimizer: the inner optimizer; it does the local steps, without a closure.
        model: the model that has the parameters, or None.
        group: the process group over which a step averages, or None.

    Attributes:
        inner: the inner optimizer.
        rank: rank of this worker, as set by the launcher; 0 without a launcher.
        workers: number of workers of the run; a subclass sets it.

    Raises:
        TypeError: an argument is not an optimizer or not a model.
        ConfigError: the optimizer's step needs a closure (LBFGS), or it is a wrapper itself.
    """

    workers: int = 1

    _given: int | None = None
    """Checksum of the initial values of the model, until the first step."""

    _own: WorkerValues | None = None
    """The worker's own values; None if all have the same parameters, and after finish."""

    _are_others_equal = False
    """Whether the first step has compared the model's other parameters; see ``others``."""

    _has_ended = _is_closed = False
    """Whether ``finish`` was called; whether this worker has left the run."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        model: torch.nn.Module | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        check_optimizer(optimizer)
        if isinstance(optimizer, WrappedOptimizer):
            raise ConfigError(
                "this optimizer is a wrapper: close it, and wrap its inner one (.inner)",
                optimizer=type(optimizer).__name__,
            )
        check_model(model, optimizer)
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ConfigError(
                "a step takes one gradient here: use an optimizer whose step needs no closure",
                optimizer=type(optimizer).__name__,
            )
        self.inner = optimizer
        self._set_inner("train")  # it may be in eval mode, as after finish or a load
        self._may_warn = group is None  # until the first step
        self.rank = World.from_env(os.environ).rank
        super().__setstate__({"defaults": optimizer.defaults})
        self._wrapped = tuple(self._members())
        self._order = order_of(optimizer, model)
        note_wrapped(self, self._wrapped)
        self._follow_loads(optimizer)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the inner optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        """The state of the inner optimizer."""
        return self.inner.state

    @state.setter
    def state(self, state: Any) -> None:
        self.inner.state = state

    @_disable_dynamo  # as torch's own methods; torch.compiler.disable imports torch._dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step.

        Args:
            closure: evaluates the model once and returns the loss; optional.

        Returns:
            The return value of the closure.

        Raises:
            ConfigError: it was closed; ``finish`` was called and failed; the model was changed
                after wrapping, or holds the center since :meth:`eval`; the inner optimizer has
                other parameters, or cannot handle a sparse gradient; or parameters that only
                ``model=`` has differ from the first worker's. Nothing was changed.
            LeaseLostError: another process has this worker's rank; nothing was exchanged.
        """
        self._demand_open()
        self._demand_wrapped()
        if self._own is not None:
            self._own.check()
        if self._may_warn:
            self._may_warn = False
            warn_if_both_communicate(self.workers)
        if not self._are_others_equal:
            self._demand_equal_others()
            self._are_others_equal = True
        self._demand_unchanged()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._prepare_gradients()
        with torch.no_grad():
            self._match(self.inner)
            self._advance()
        return loss

    def _demand_open(self) -> None:
        """Raise ConfigError if this worker was closed or has called finish."""
        if self._is_closed:
            raise ConfigError("the optimizer was closed: wrap the inner one again to go on")
        if self._has_ended:
            raise ConfigError("the worker has called finish: repeat it, or close and wrap anew")

    def _demand_loadable(self, state_dict: dict[str, Any], algorithm: str) -> None:
        """Raise ConfigError if this worker has ended, or the state does not fit it."""
        self._demand_open()
        demand_algorithm(state_dict, algorithm, self._order)

    def _demand_finishable(self, timeout_s: float | None) -> None:
        """Raise ConfigError if this worker was closed, or the timeout is no time."""
        deadline_given(timeout_s)
        if self._is_closed:
            raise ConfigError("the optimizer was closed: call finish once, without close")

    def _members(self) -> Iterator[torch.Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _remember(self) -> None:
        """Record a checksum of the model's values, which the first step compares."""
        self._given = digest(self._members())

    def _remember_filled(self, model: torch.nn.Module) -> None:
        """Record the checksum again, before the first step, if the own model was filled."""
        own = {id(parameter) for parameter in self._members()}
        if self._given is not None and any(id(p) in own for p in model.parameters()):
            self._remember()

    def _is_unchanged(self) -> bool:
        return self._given is None or digest(self._members()) == self._given

    def _demand_unchanged(self) -> None:
        """Raise ConfigError, before the first step, if the model was changed since wrapping."""
        if not self._is_unchanged():
            raise ConfigError(
                "the model was changed after the optimizer was wrapped: load the model before"
                " wrapping, and renorm_ an Embedding(max_norm=), which changes in forward,"
                " below max_norm. To resume a run, use the optimizer's load_state_dict",
                optimizer=type(self).__name__,
            )
        self._given = None

    def _demand_wrapped(self) -> None:
        """Raise ConfigError if the inner optimizer has other parameters than were wrapped."""
        found = [*self._members()]
        if [*map(id, found)] != [*map(id, self._wrapped)]:
            raise ConfigError(
                "the inner optimizer has other parameters than when it was wrapped, and the"
                " other workers do not have them: add parameter groups first, then wrap",
                parameters=len(found),
                wrapped=len(self._wrapped),
            )

    def _demand_equal_others(self) -> None:
        """Raise ConfigError if the model's other parameters are not those of all workers."""

    def _prepare_gradients(self) -> None:
        """Make gradients that the inner optimizer can step with; ConfigError if it cannot."""

    def _advance(self) -> None:
        """Do one step with the current gradients."""
        raise NotImplementedError

    @torch.no_grad()
    def eval(self) -> None:
        """Put the center into the model, to evaluate or save it.

        The worker's own values are kept aside until :meth:`train`. Meanwhile ``step`` and
        exchanges raise ConfigError, and ``state_dict`` still returns the worker's own values.
        Nothing is done after ``finish``, and if all workers have the same parameters.

        Raises:
            SmboxError: the center cannot be read, or the model was moved; it is unchanged.
        """
        if self._own is not None:
            self._set_inner("train")  # its own point of the gradients is kept aside
            self._own.replace(self._take_center)

    @torch.no_grad()
    def train(self) -> None:
        """Put the worker's own values back into the model; no effect if they are there.

        It calls ``train`` of an inner optimizer that has it (schedule-free ones).
        """
        self._set_inner("train")
        if self._own is not None:
            self._own.restore()

    def _set_inner(self, mode: Literal["train", "eval"]) -> None:
        """Call ``train`` or ``eval`` of the inner optimizer, if it has them: they move x."""
        method = getattr(self.inner, mode, None)
        if callable(method) and not self._is_closed and self._is_unchanged():
            method()
            if self._given is not None:
                self._remember()

    def _take_center(self) -> None:
        """Set the worker's own model to the center."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's
        """Clear the gradients."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002 - torch's
        """Raise ConfigError: the parameters are fixed when the optimizer is wrapped."""
        raise ConfigError("wrap the optimizer after all parameter groups have been added")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner optimizer."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the inner optimizer; the model is unchanged.

        Raises:
            ConfigError: the state does not fit the inner optimizer; nothing was changed.
        """
        self._load_inner(state_dict)

    def _load_inner(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a plain torch optimizer into the inner one."""
        load_inner(self.inner, state_dict)
        self._inner_loaded()  # an optimizer may load without calling hooks

    def close(self) -> None:
        """Leave the other workers. Idempotent."""
        self._mark_closed()

    def _mark_closed(self) -> None:
        self._is_closed = True
        forget_wrapped(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
