"""What forms the mean of gradients: the protocol, and where a rank's gradients gather."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from smbox.errors import ConfigError
from smbox_torch.checks import check_optimizer
from smbox_torch.model.flat import unique

__all__ = ["Follow", "GradientViews", "Mean", "averaged"]


class Follow(enum.Enum):
    """What the other ranks do, to one that has no batches left."""

    ROUND = enum.auto()
    STEP = enum.auto()
    END = enum.auto()


class Mean(Protocol):
    """One rank's end of rounds that replace gradients by their weighted mean over all ranks.

    Attributes:
        nbytes: that a round moves for this rank, both directions.
        is_any_due: after ``finish``, whether a rank has asked to compare; the same on all.
    """

    nbytes: int
    is_any_due: bool

    def begin(self, weight: float, *, is_due: bool) -> None:
        """Begin a round; nothing is waited for.

        Args:
            weight: of this rank.
            is_due: ask all ranks to compare what they hold.
        """

    def take(self, index: int) -> None:
        """Take the gradient of a parameter, which is final (or None) in this round.

        Raises:
            ConfigError: it has no mean (sparse, or of another dtype or shape than before).
        """

    def finish(self) -> None:
        """Return when gradients and buffers are the same on all ranks; all were taken.

        Raises:
            StepMismatchError: a rank skipped a step, or finished; gradients are undefined.
            WorkerLostError: a rank died, left or did not come; gradients are undefined.
        """

    def compare(self, digest: int) -> None:
        """Compare a digest, below 2**32, with those of the ranks that have batches left.

        All ranks call it after a round in which one asked for it.

        Raises:
            ConfigError: on all ranks: some differ; it names them.
            WorkerLostError: a rank died, left or did not come.
        """

    def stepped(self, steps: int) -> None:
        """Tell that this rank has done so many steps."""

    def meet(self) -> None:
        """Make sure that all ranks are in the same step, before a collective inside it.

        Raises:
            StepMismatchError: one is not.
        """

    def join(self) -> None:
        """Tell that this rank has no batches left."""

    def follow(self, is_awaited: Callable[[], bool]) -> Follow:
        """Wait for what the others do next, after :meth:`join`.

        Args:
            is_awaited: whether another rank waits for this one in the middle of a step.
        """

    def is_leader(self) -> bool | None:
        """Tell, after END, whether this rank's loop did the most steps, as the first that did.

        Returns:
            None where all loops did equally many.
        """

    def close(self, *, steps: int | None) -> None:
        """Leave, after so many steps; None: not in order."""


def averaged(optimizer: torch.optim.Optimizer) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return an optimizer's parameters, each once: those that are averaged, and frozen ones.

    Raises:
        TypeError: it is no optimizer.
        ConfigError: there are none to average, or some have no mean; nothing was changed.
    """
    check_optimizer(optimizer)
    members = unique(p for group in optimizer.param_groups for p in group["params"])
    found = [parameter for parameter in members if parameter.requires_grad]
    devices = sorted({str(parameter.device) for parameter in members})
    if not found or any(not each.dtype.is_floating_point for each in found):
        raise ConfigError("only floating-point parameters that require gradients have a mean")
    if len(devices) > 1 or devices == ["meta"]:
        raise ConfigError("all parameters must be on one device", devices=devices)
    return found, [parameter for parameter in members if not parameter.requires_grad]


class GradientViews:
    """Places for the gradients of parameters; once taken, a gradient is a view of its place.

    Args:
        parameters: whose gradients.
        views: the places, in the parameters' dtypes and shapes. Where they are on another
            device than the parameters, a parameter keeps a gradient of its own.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], views: Sequence[torch.Tensor]
    ) -> None:
        self._parameters = list(parameters)
        self._views = list(views)
        self._is_near = views[0].device == parameters[0].device

    def take(self, index: int) -> bool:
        """Bring a gradient to its place; tell whether there was one, else the place is zero.

        Raises:
            ConfigError: it is sparse, or the parameter was replaced by another dtype or shape.
        """
        parameter, view = self._parameters[index], self._views[index]
        gradient = parameter.grad
        if gradient is view:
            return True
        if gradient is None:
            view.zero_()
            return False
        if gradient.is_sparse:
            raise ConfigError("sparse gradients have no mean here; use sparse=False")
        if gradient.dtype != view.dtype or gradient.shape != view.shape:
            raise ConfigError(
                "a parameter was converted or replaced after the optimizer was wrapped:"
                " convert and load the model first, then wrap",
                before=(str(view.dtype), tuple(view.shape)),
                now=(str(gradient.dtype), tuple(gradient.shape)),
            )
        if gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            if self._is_near:
                parameter.grad = view
        return True

    def hand_out(self, used: Sequence[bool]) -> None:
        """Make what lies in the places the gradients; None where ``used`` is False."""
        for parameter, view, is_used in zip(self._parameters, self._views, used, strict=True):
            if not is_used:
                parameter.grad = None
            elif self._is_near:
                if parameter.grad is not view:
                    parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.to(parameter.device)
            else:
                parameter.grad.copy_(view)
