"""Rounds of averaging: once backward is over, the gradients are the mean of all ranks'.

One mechanism for every class that averages gradients, whatever forms the mean (``mean``). A
hook takes each gradient that autograd has finished; the first one of a backward asks the
engine for a callback at its end, which waits for the mean. So clipping, gradient scalers and
guards against infinities see the same gradients on all ranks, and all of them step or none.

Every round compares how many steps the ranks have done, and the first one after a load or a
write what they hold (``alike``).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.averaging.equal_state import EqualState
from smbox_torch.averaging.mean import Follow, Mean
from smbox_torch.model.module_slots import ModuleSlots
from smbox_torch.optimizer.stats import Recorder

__all__ = ["GradientRounds"]


class GradientRounds:
    """Keeps the gradients of one rank's parameters equal to the mean over the ranks.

    Args:
        parameters: those that require gradients; the same on every rank.
        mean: forms the mean; closed with this object.
        optimizer: steps with it; the ranks hold the same parameters and state of it.
        model: its parameters and buffers must stay the tensors that they are now.
        recorder: counts rounds as exchanges.
        demand: called before a round; what it raises leaves no round begun.

    Attributes:
        weight: how much this rank's next gradients count.
        enabled: False while gradients are to add up locally.
        steps: that this rank has done.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        mean: Mean,
        optimizer: torch.optim.Optimizer,
        *,
        model: torch.nn.Module | None = None,
        recorder: Recorder | None = None,
        demand: Callable[[], None] | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._mean = mean
        self._demand = demand
        buffers = () if model is None else model.buffers()
        self._slots = ModuleSlots(model, chain(parameters, buffers))
        self.recorder = Recorder() if recorder is None else recorder
        self.weight = 1.0
        self.enabled = True
        self.equal_state = EqualState(optimizer)
        self._averaged: list[Callable[[], torch.Tensor | None]] | None = None
        self.steps = 0
        self._is_open = self._is_broken = False
        self._members = range(len(parameters))
        self._missing = set(self._members)
        self._started_s = 0.0
        self._hooks = [
            each.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._on_gradient, index)
            )
            for index, each in enumerate(parameters)
        ]

    @property
    def is_synced(self) -> bool:
        """Whether the gradients are the mean already, and none was replaced since.

        What was done to them in place (clipping, unscaling) is as it should be.
        """
        if self._averaged is None:
            return False
        pairs = zip(self._parameters, self._averaged, strict=True)
        return all(parameter.grad is mean() for parameter, mean in pairs)

    def discard(self) -> None:
        """Let the next gradients be averaged, whatever they are."""
        self._averaged = None

    def _on_gradient(self, index: int, parameter: torch.Tensor) -> None:
        """Take the gradient that autograd has just finished."""
        if not self.enabled:
            self.discard()  # what backward before this one averaged is the mean no more
            return
        if not self._is_open:
            self._begin()
            # Public callbacks run per tensor; only the engine knows when backward is over.
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
        if index not in self._missing:
            raise ConfigError(
                "a second gradient of one parameter came before the first was averaged: this"
                " backward runs a part of the model twice, or one before it was broken off; if"
                " so, call synchronize(), which ends its round on all ranks, and zero_grad()",
                shape=tuple(parameter.shape),
            )
        self._mean.take(index)
        self._missing.remove(index)

    def _begin(self, *, may_compare: bool = True) -> None:
        self._slots.check()
        if self._demand is not None:
            self._demand()
        self.equal_state.detect_writes()
        self._mean.begin(self.weight, is_due=may_compare and self.equal_state.is_due)
        self._is_open = True
        self.discard()
        self._started_s = time.perf_counter()

    def finish(self) -> None:
        """Wait for the other ranks; afterwards every gradient is the mean.

        Raises:
            StepMismatchError: a rank skipped a step, or finished; gradients are undefined.
            WorkerLostError: a rank died, left or did not come; gradients are undefined.
            ConfigError: a rank holds other parameters than others; on all ranks.
        """
        if not self._is_open:
            self._begin()
        finishing_s = time.perf_counter()
        try:
            with torch.no_grad():
                for index in sorted(self._missing):
                    self._mean.take(index)
                self._missing.clear()
                self._mean.finish()
                if self._mean.is_any_due:
                    self._mean.compare(self.equal_state.digest())
                    self.equal_state.agreed()
        except BaseException:
            self._is_broken = True
            raise
        self._missing.update(self._members)
        self._is_open = False
        self._averaged = [_reference(parameter.grad) for parameter in self._parameters]
        ended_s = time.perf_counter()
        self.recorder.exchange(took_s=ended_s - self._started_s, nbytes=self._mean.nbytes)
        self.recorder.waited(ended_s - finishing_s)

    def stepped(self) -> None:
        """Count a step with these gradients."""
        self.steps += 1
        self.equal_state.record_writes()
        self.discard()
        self._mean.stepped(self.steps)

    def meet(self) -> None:
        """Make sure that all ranks are in the same step; before a collective inside it."""
        self._mean.meet()

    def follow(self, step: Callable[[], None], is_awaited: Callable[[], bool]) -> None:
        """Do what the others do, with weight 0, until all ranks follow.

        Args:
            step: does one step, :meth:`stepped` included.
            is_awaited: whether another rank waits for this one in the middle of a step.
        """
        self._mean.join()
        weight, self.weight = self.weight, 0.0
        try:
            while (now := self._mean.follow(is_awaited)) is not Follow.END:
                if now is Follow.STEP:
                    step()
                else:
                    self.finish()
        finally:
            self.weight = weight

    def agree(self, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
        """Give all ranks what the one holds whose loop did the most steps; after ``follow``.

        A rank that followed did not do what that loop did to gradients before a step (clip,
        unscale). Nothing is done where all loops did equally many steps; else gradients are
        None afterwards.

        Args:
            state: of the optimizer; its tensors that are like their parameter are given, too.
        """
        is_leader = self._mean.is_leader()
        if is_leader is None:
            return
        weight, self.weight = self.weight, float(is_leader)
        try:
            self._share(self._parameters)
            for key in dict.fromkeys(
                k for each in self._parameters for k in state.get(each, ())
            ):
                own = [_like(each, state.get(each, {}).get(key)) for each in self._parameters]
                if any(tensor is not None for tensor in own):
                    self._share(own)
            self.equal_state.record_writes()
        finally:
            self.weight = weight

    def _share(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Replace tensors, one for each parameter, by their mean: a round of its own."""
        pairs = list(zip(self._parameters, tensors, strict=True))
        for parameter, tensor in pairs:
            parameter.grad = None if tensor is None else tensor.detach().clone()
        self._begin(may_compare=False)  # they differ until all have what the leader holds
        self.finish()
        for parameter, tensor in pairs:
            if tensor is not None and parameter.grad is not None:
                tensor.copy_(parameter.grad)
            parameter.grad = None
        self.discard()

    def close(self, *, in_order: bool = True) -> None:
        """Leave the other ranks; gradients stay, hooks go."""
        for hook in self._hooks:
            hook.remove()
        self._mean.close(steps=self.steps if in_order and not self._is_broken else None)


def _reference(gradient: torch.Tensor | None) -> Callable[[], torch.Tensor | None]:
    """Return how to find a gradient again, without keeping its memory."""
    return _nothing if gradient is None else weakref.ref(gradient)


def _nothing() -> None:
    return None


def _like(parameter: torch.Tensor, found: object) -> torch.Tensor | None:
    """Return a tensor of a parameter's shape and dtype, or None for anything else."""
    if not isinstance(found, torch.Tensor) or found.shape != parameter.shape:
        return None
    is_like = found.dtype == parameter.dtype and found.device == parameter.device
    return found if is_like else None
