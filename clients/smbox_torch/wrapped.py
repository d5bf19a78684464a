"""An optimizer around an optimizer: what every wrapper is to schedulers, scalers and users."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from smbox.errors import ConfigError
from smbox_torch.torch_group import warn_if_both_communicate
from smbox_torch.world import World

__all__ = ["WrappedOptimizer"]


class WrappedOptimizer(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` whose groups and state are those of the optimizer inside.

    A subclass says in ``_advance`` what one step is, and in ``close`` how it ends.

    Args:
        optimizer: does the local steps; its ``step`` must do without a closure.
        group: the process group that a step averages over, or None.

    Attributes:
        inner: the optimizer inside.
        rank: of this worker, as the launcher tells; 0 without one.

    Raises:
        ConfigError: the optimizer evaluates the model several times a step, as LBFGS does.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, group: dist.ProcessGroup | None = None
    ) -> None:
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
        """
        if self._may_warn:
            self._may_warn = False
            warn_if_both_communicate()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._advance()
        return loss

    def _advance(self) -> None:
        """Do one step; gradients are in place."""
        raise NotImplementedError

    def eval(self) -> None:
        """Put what the run evaluates and saves into the model, until :meth:`train`.

        Here that is the worker's own model: nothing changes.
        """

    def train(self) -> None:
        """Put the worker's own values back into the model; harmless if they are there."""

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
        """Load the state of the optimizer inside."""
        self.inner.load_state_dict(state_dict)
        self._adopt()

    def close(self) -> None:
        """Leave the other workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
