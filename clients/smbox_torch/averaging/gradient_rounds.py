"""Rounds of averaging: when backward returns, the gradients are the mean over all ranks.

All classes that average gradients use this mechanism, with any implementation of ``mean``. A
hook reports each gradient that autograd has finished. Other hooks of the parameter may run
later and change the gradient, so it is taken when the next one is finished, or when backward
ends. The first gradient of a backward pass registers a callback for its end, which waits for
the mean. So clipping, gradient scalers and checks for infinities see the same gradients on all
ranks, and all ranks step or none does.

Every round compares the step counts of the ranks. The first round after a load or a write also
compares their parameters and states (``equal_state``).
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch

from smbox.errors import ConfigError, WorkerLostError
from smbox_torch.averaging.equal_gradients import FirstGradient
from smbox_torch.averaging.equal_state import EqualState
from smbox_torch.averaging.mean import Follow, Mean
from smbox_torch.model.module_slots import ModuleSlots
from smbox_torch.optimizer.stats import Recorder

__all__ = ["GradientRounds"]


class GradientRounds:
    """Replaces the gradients of one rank's parameters by the mean over the ranks.

    Args:
        parameters: those that require gradients; the same on every rank.
        mean: computes the mean; closed with this object.
        optimizer: the inner optimizer; its parameters and state must be equal on all ranks.
        model: model whose parameters and buffers must not be replaced by other tensors.
        recorder: counts rounds as exchanges.
        demand: called before a round; if it raises, no round is begun.

    Attributes:
        weight: weight of this rank's next gradients.
        enabled: False while gradients accumulate locally.
        steps: number of steps of this rank.
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
        self.equal_state = EqualState(optimizer, model)
        self._first = FirstGradient(self._parameters)
        self._averaged: list[Callable[[], torch.Tensor | None]] | None = None
        self.steps = 0
        self._is_open = self._is_broken = False
        self._pid = os.getpid()
        self._members = range(len(parameters))
        self._missing = set(self._members)
        self._ready: int | None = None  # finished and not taken: its hooks may still run
        self._stream: torch.cuda.Stream | None = None  # on which it was finished
        self._started_s = 0.0
        self._hooks = [
            each.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._on_gradient, index)
            )
            for index, each in enumerate(parameters)
        ]

    @property
    def is_synced(self) -> bool:
        """Whether the gradients are the mean, and none was replaced since.

        Changes in place (clipping, unscaling) are allowed.
        """
        if self._averaged is None or self._is_open:
            return False
        pairs = zip(self._parameters, self._averaged, strict=True)
        return all(parameter.grad is mean() for parameter, mean in pairs)

    def discard(self) -> None:
        """Mark the gradients as not averaged, so that the next step averages them."""
        self._averaged = None

    def _on_gradient(self, index: int, parameter: torch.Tensor) -> None:
        """Take the gradient before the one that autograd has just finished."""
        if not self.enabled:
            self.discard()  # the gradients are not the mean any more
            return
        if not self._is_open:
            self._begin()
            # Public callbacks run per tensor; only the engine knows when backward is over.
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
        if index == self._ready or index not in self._missing:
            raise ConfigError(
                "a second gradient of one parameter arrived before the first was averaged: this"
                " backward runs a part of the model twice, or an earlier backward was"
                " interrupted. In the first case, call checkpoint with use_reentrant=False, or"
                " call backward in no_sync() and then synchronize(); in the second case,"
                " synchronize(), which ends the round on all ranks, and zero_grad()",
                shape=tuple(parameter.shape),
            )
        if self._ready is not None:
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                self._take(self._ready)
            self._missing.discard(self._ready)
        device = parameter.device
        self._stream = torch.cuda.current_stream(device) if parameter.is_cuda else None
        self._ready = index

    def _take(self, index: int) -> None:
        self._first.take(index)
        self._mean.take(index)

    def _demand_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                "a forked child is not the rank of its parent: use a copy of the model there,"
                " or wrap an optimizer in the child"
            )

    def _begin(self, *, may_compare: bool = True) -> None:
        self._demand_own_process()
        self._slots.check()
        if self._demand is not None:
            self._demand()
        self.equal_state.detect_writes()
        self._mean.begin(self.weight, due=self.equal_state.due() if may_compare else 0)
        self._is_open = True
        self.discard()
        self._started_s = time.perf_counter()

    def finish(self) -> None:
        """Wait for the other ranks; afterwards every gradient is the mean.

        Raises:
            StepMismatchError: a rank skipped a step, or finished; gradients are undefined.
            WorkerLostError: a rank died, left or did not arrive; gradients are undefined. Or an
                earlier call failed, and ``mean`` cannot repeat it.
            ConfigError: on all ranks: the parameters or states of some ranks differ.
        """
        if self._is_broken and not self._mean.can_repeat:
            raise WorkerLostError(
                "this rank was interrupted, or had another error, while the ranks exchanged"
                " gradients, and cannot repeat its part: close, start all again, and continue"
                " from a checkpoint"
            )
        if not self._is_open:
            self._begin()
        finishing_s = time.perf_counter()
        try:
            with torch.no_grad():
                for index in sorted(self._missing):
                    self._take(index)
                self._missing.clear()
                self._ready = None
                self._mean.finish()
                if self._mean.is_any_due:
                    self._mean.compare(self.equal_state.digest())
                    self.equal_state.agreed()
            self._averaged = [_reference(parameter.grad) for parameter in self._parameters]
            self._missing.update(self._members)
            self._is_broken = False
            self._is_open = False  # last: after an interrupt, finish can be called again
        except BaseException:
            self._is_broken = True
            raise
        ended_s = time.perf_counter()
        self.recorder.exchange(took_s=ended_s - self._started_s, nbytes=self._mean.nbytes)
        self.recorder.waited(ended_s - finishing_s)
        self._first.compare(self._mean.ranks)

    def stepped(self) -> None:
        """Count a step with these gradients."""
        self._demand_own_process()
        self.steps += 1
        self.equal_state.record_writes()
        self.discard()
        self._mean.stepped(self.steps)

    def meet(self) -> None:
        """Check that all ranks are in the same step, before a collective operation in it."""
        self._mean.meet()

    def follow(self, step: Callable[[], None], is_awaited: Callable[[], bool]) -> None:
        """Take part in the others' rounds and steps, with weight 0, until all ranks do so.

        Args:
            step: does one step, including :meth:`stepped`.
            is_awaited: whether another rank waits for this one within a step.
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

    def agree(self, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> bool:
        """Copy parameters and state of the rank with the most steps to all; after ``follow``.

        A rank that followed did not change gradients before a step (clip, unscale), as that
        rank's loop did. If all loops did equally many steps, nothing is done; otherwise
        gradients are None afterwards.

        Args:
            state: state of the optimizer; its tensors with the shape and dtype of their
                parameter are copied, too.

        Returns:
            whether they were copied; the same on all ranks.
        """
        is_leader = self._mean.is_leader()
        if is_leader is None:
            return False
        self._first.is_over = True  # what is averaged below are no gradients
        weight, self.weight = self.weight, float(is_leader)
        try:
            self._share(self._parameters)
            for key in dict.fromkeys(
                k for each in self._parameters for k in state.get(each, ())
            ):
                own = [_like(each, state.get(each, {}).get(key)) for each in self._parameters]
                if any(tensor is not None for tensor in own):
                    self._share(own)
        finally:
            self.weight = weight
        return True

    def _share(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Replace tensors, one per parameter, by their mean, in a separate round."""
        pairs = list(zip(self._parameters, tensors, strict=True))
        for parameter, tensor in pairs:
            parameter.grad = None if tensor is None else tensor.detach().clone()
        self._begin(may_compare=False)  # ranks differ until all have the leader's values
        self.finish()
        for parameter, tensor in pairs:
            if tensor is not None and parameter.grad is not None:
                tensor.copy_(parameter.grad)
            parameter.grad = None
        self.discard()

    def close(self, *, in_order: bool = True) -> None:
        """Leave the other ranks and remove the hooks; gradients are kept."""
        for hook in self._hooks:
            hook.remove()
        self._mean.close(steps=self.steps if in_order and not self._is_broken else None)


def _reference(gradient: torch.Tensor | None) -> Callable[[], torch.Tensor | None]:
    """Return a weak reference to a gradient."""
    return _nothing if gradient is None else weakref.ref(gradient)


def _nothing() -> None:
    return None


def _like(parameter: torch.Tensor, found: object) -> torch.Tensor | None:
    """Return a tensor of a parameter's shape and dtype, or None for anything else."""
    if not isinstance(found, torch.Tensor) or found.shape != parameter.shape:
        return None
    is_like = found.dtype == parameter.dtype and found.device == parameter.device
    return found if is_like else None
