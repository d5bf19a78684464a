"""Mean, the protocol of gradient averaging, and the views that hold a rank's gradients."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from smbox.errors import ConfigError
from smbox_torch.checks import check_optimizer
from smbox_torch.model.flat import unique
from smbox_torch.model.sparse_gradients import check_dense

__all__ = ["Follow", "GradientViews", "Mean", "averaged", "buffers_of"]


class Follow(enum.Enum):
    """What the other ranks do next, for a rank that has no batches left."""

    ROUND = enum.auto()
    STEP = enum.auto()
    END = enum.auto()


class Mean(Protocol):
    """Rounds that replace gradients by their weighted mean over all ranks, on one rank.

    Attributes:
        nbytes: bytes that a round transfers for this rank, both directions.
        ranks: after ``finish``, how many ranks had batches in the round; 0 before the first.
        is_any_due: after ``finish``, whether a rank requested a comparison; the same on all.
        can_repeat: whether ``finish`` and ``compare`` may be called again after an error. If
            not, nothing tells which part of its round this rank has already done.
    """

    nbytes: int
    ranks: int
    is_any_due: bool
    can_repeat: bool

    def begin(self, weight: float, *, due: int) -> None:
        """Begin a round, without waiting.

        Args:
            weight: weight of this rank.
            due: odd requests that all ranks compare parameters and states. So do different
                numbers, at most 2**32, of ranks that have batches left.
        """

    def take(self, index: int) -> None:
        """Add a parameter's gradient, which is final (or None), to this round.

        Raises:
            ConfigError: it cannot be averaged (sparse, or of another dtype or shape).
        """

    def finish(self) -> None:
        """Wait until gradients and buffers are the same on all ranks; all were taken.

        Raises:
            StepMismatchError: a rank skipped a step, or finished; gradients are undefined.
            WorkerLostError: a rank died, left or did not arrive; gradients are undefined.
        """

    def compare(self, digest: int) -> None:
        """Compare a digest, below 2**32, with those of the ranks that have batches left.

        All ranks call it after a round in which a rank requested it.

        Raises:
            ConfigError: on all ranks: some digests differ; it names these ranks.
            WorkerLostError: a rank died, left or did not arrive.
        """

    def stepped(self, steps: int) -> None:
        """Report the number of steps that this rank has done."""

    def meet(self) -> None:
        """Check that all ranks are in the same step, before a collective operation in it.

        Raises:
            StepMismatchError: a rank is in another step.
        """

    def join(self) -> None:
        """Report that this rank has no batches left."""

    def follow(self, is_awaited: Callable[[], bool]) -> Follow:
        """Wait until it is known what the others do next, after :meth:`join`.

        Args:
            is_awaited: whether another rank waits for this one within a step.
        """

    def is_leader(self) -> bool | None:
        """Return, after END, whether this rank is the first whose loop did the most steps.

        Returns:
            None if all loops did equally many steps.
        """

    def close(self, *, steps: int | None) -> None:
        """Leave after ``steps`` steps; None: after an error."""


def averaged(optimizer: torch.optim.Optimizer) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return an optimizer's parameters, each once: those that are averaged, and frozen ones.

    Raises:
        TypeError: it is not an optimizer.
        ConfigError: there are none to average, some cannot be averaged, or it is SparseAdam.
    """
    check_optimizer(optimizer)
    check_dense(optimizer)
    members = unique(p for group in optimizer.param_groups for p in group["params"])
    found = [parameter for parameter in members if parameter.requires_grad]
    devices = sorted({str(parameter.device) for parameter in members})
    if not found or any(not each.dtype.is_floating_point for each in found):
        raise ConfigError(
            "only floating-point parameters that require gradients can be averaged: leave"
            " others out of the optimizer, and unfreeze what is to be trained before wrapping",
            dtypes=sorted({str(parameter.dtype) for parameter in found}),
        )
    if len(devices) > 1 or devices == ["meta"]:
        raise ConfigError("all parameters must be on one device", devices=devices)
    return found, [parameter for parameter in members if not parameter.requires_grad]


def buffers_of(model: torch.nn.Module | None) -> list[torch.Tensor]:
    """Return a model's buffers, each once; empty without a model.

    Raises:
        ConfigError: one cannot be copied to other ranks, because it is sparse or quantized.
    """
    buffers = [] if model is None else unique(model.buffers())
    if any(each.layout is not torch.strided or each.is_quantized for each in buffers):
        raise ConfigError(
            "all ranks copy the buffers of model=, and one is sparse or quantized: leave out"
            " model=, or keep it as an attribute of the module"
        )
    return buffers


class GradientViews:
    """Views of a buffer for the gradients of parameters; ``take`` makes a gradient a view.

    Parameters get aliases of the views: ``model.half()`` replaces the memory of the tensors
    that are its gradients.

    Args:
        parameters: the parameters.
        views: one view per parameter, with its dtype and shape. If a view is on another device
            or has other strides than its parameter (channels_last), the parameter keeps a
            separate gradient: fused optimizers ignore the strides.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], views: Sequence[torch.Tensor]
    ) -> None:
        self._parameters = list(parameters)
        self._views = list(views)
        self._is_near = [
            view.device == parameter.device and view.stride() == parameter.stride()
            for parameter, view in zip(parameters, views, strict=True)
        ]

    def take(self, index: int) -> bool:
        """Copy a gradient to its view; return False and set the view to zero if there is none.

        Raises:
            ConfigError: the gradient is sparse, or has another dtype or shape than its view.
        """
        parameter, view = self._parameters[index], self._views[index]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
            return False
        if gradient.is_sparse:
            raise ConfigError(
                "sparse gradients cannot be averaged here: use sparse=False, or an algorithm"
                " that accepts them (Hogwild, EASGD, Downpour)"
            )
        if gradient.dtype != view.dtype or gradient.shape != view.shape:
            raise ConfigError(
                "a parameter was converted or replaced after the optimizer was wrapped:"
                " convert and load the model first, then wrap",
                before=(str(view.dtype), tuple(view.shape)),
                now=(str(gradient.dtype), tuple(gradient.shape)),
            )
        if gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient.detach())  # with create_graph it has a graph, which would grow
            parameter.grad = (view if self._is_near[index] else gradient).detach()
        return True

    def hand_out(self, used: Sequence[bool]) -> None:
        """Set the gradients to their views; None where ``used`` is False."""
        pairs = zip(self._parameters, self._views, strict=True)
        for (parameter, view), is_used, is_near in zip(pairs, used, self._is_near, strict=True):
            if not is_used:
                parameter.grad = None
            elif is_near:
                if parameter.grad is None or parameter.grad.data_ptr() != view.data_ptr():
                    parameter.grad = view.detach()
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter).copy_(view)
            else:
                parameter.grad.copy_(view)
