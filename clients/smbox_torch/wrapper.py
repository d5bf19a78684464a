"""The base of all algorithms: an optimizer around an optimizer, for an unchanged training loop.

A wrapper is a ``torch.optim.Optimizer``: schedulers and hooks take it as one, and so do
gradient scalers, but where the step itself meets the other workers (SyncEASGD): a scaler that
leaves out a step of one of them parts them. Its parameter groups
and state are those of the optimizer inside. A subclass says in ``_advance`` what one step is: a
local step and the exchanges that are due.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike, RegionLike
from smbox_torch.center import Center, Shared
from smbox_torch.evaluating import EvaluatingOptimizer
from smbox_torch.flat import (
    FlatBuffer,
    FlatParameters,
    float_buffers,
    named_floats,
    other_buffers,
)
from smbox_torch.matching import counterparts, names_of
from smbox_torch.own_values import OwnValues, restore
from smbox_torch.phase import Phase
from smbox_torch.stats import Recorder, Stats
from smbox_torch.team import LEASE_S, Workers

__all__ = ["BoxOptimizer"]


class BoxOptimizer(EvaluatingOptimizer):
    """An optimizer whose steps also exchange the parameters with a memory box.

    Wrapping makes the parameters views of flat buffers and sets them to the center: the
    first worker's values, or what the center has become since. Parameter groups cannot be
    added later, and the model cannot be moved to another device or dtype.

    Args:
        optimizer: does the local steps; its parameters are what is exchanged.
        box: the memory; closing it stays the caller's.
        name: of the run: prefix of all regions, counters and barriers.
        model: also exchange its floating-point buffers (batch norm), in regions of their own;
            gives the parameters names, by which ``center_into`` finds them in other models.
        workers: number of workers, or a member from ``smbox.join``; None: as the launcher
            (``smbox run``, torchrun) says. docs/membership.md says what follows from each.
        rank: of this worker; None: the launcher's, else the lowest that is free.
        lease_s: seconds without a sign of life after which this worker counts as dead.
        gradients: keep the gradients in flat buffers too.

    Attributes:
        inner: the optimizer inside.
        steps: local steps so far; under a dead predecessor's rank it begins at its steps.
        team: who works in this run; docs/membership.md.

    Raises:
        ConfigError: impossible arguments, or nobody says how many workers there are; nothing
            was created.
        RankTakenError: a living process has this worker's rank; nothing was changed.
        LayoutMismatchError: the center of this name belongs to another model.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: BoxLike,
        name: str,
        *,
        model: torch.nn.Module | None = None,
        workers: Workers = None,
        rank: int | None = None,
        lease_s: float = LEASE_S,
        gradients: bool = False,
    ) -> None:
        super().__init__(optimizer)
        self.box = box
        self.name = name
        self._join(box, name, workers, rank, lease_s)
        self.recorder = Recorder()
        self._flat_gradients = gradients
        members = (p for group in optimizer.param_groups for p in group["params"])
        self.flat = FlatParameters(members, gradients=gradients)
        self.phase = Phase(box, name)
        self.center = Center(box, name, self.flat)
        self._model = model
        self.buffers = self._buffer_center(model)
        self._counts = [] if model is None else other_buffers(model)
        self._names = names_of(optimizer, model)
        self._own = OwnValues([center.flat for center in self._centers()])

    def _buffer_center(self, model: torch.nn.Module | None) -> Center | None:
        tensors = float_buffers(model) if model is not None else []
        if not tensors:
            return None
        return Center(self.box, f"{self.name}.buffers", FlatParameters(tensors))

    # ------------------------------------------------------------------ the optimizer's part

    def _local_step(self) -> None:
        """Let the optimizer inside do its step."""
        self.inner.step()
        self._count_step()

    def _count_step(self) -> None:
        self.steps += 1
        self.recorder.steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's
        """Clear the gradients; flat gradients are set to zero and stay where they are."""
        if self._flat_gradients:
            self.flat.zero_gradients()
        else:
            super().zero_grad(set_to_none)

    # ------------------------------------------------------------------ exchanges

    @contextmanager
    def _exchanging(self, nbytes: int) -> Iterator[None]:
        """Count what happens inside as one exchange that the training thread waits for."""
        self._begin_exchange()
        began_s = time.monotonic()
        yield
        took_s = time.monotonic() - began_s
        self.recorder.exchange(took_s=took_s, nbytes=nbytes)
        self.recorder.waited(took_s)

    def _begin_exchange(self) -> None:
        self.team.check()
        self._own.check()
        self.flat.check()
        self._check_buffers()
        self.phase.use()

    def _check_buffers(self) -> None:
        """Raise ConfigError if the model got other tensors for its buffers since."""
        if self.buffers is None or self._model is None:
            return
        present = {id(buffer) for buffer in self._model.buffers()}
        if any(id(tensor) not in present for tensor in self.buffers.flat.tensors):
            raise ConfigError(
                "a buffer of the model is another tensor now, which nobody averages: change"
                " buffers in place (buffer.copy_(...)), or wrap without model="
            )

    def _centers(self) -> Iterator[Center]:
        """Iterate over parameters' and, if there are any, buffers' centers."""
        yield self.center
        if self.buffers is not None:
            yield self.buffers

    def _average_buffers(self) -> None:
        """Pull batch-norm buffers and their center together."""
        for buffer, region in self.buffers or ():
            region.elastic(buffer.load(), self._default_rate())
            buffer.store()

    def pairs(self) -> list[tuple[FlatBuffer, RegionLike]]:
        """Return all buffers with their regions: parameters, then batch-norm buffers."""
        return [pair for center in self._centers() for pair in center]

    def _best(self) -> Center:
        """Return what is evaluated in the end: the center, or an average of it."""
        return self.center

    def _evaluated(self) -> Iterator[Center]:
        yield self._best()
        if self.buffers is not None:
            yield self.buffers

    def _shared(self) -> Iterator[Shared]:
        """Iterate over all that a checkpoint must hold of what the workers share."""
        return self._centers()

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is exchanged, one direction."""
        return sum(center.nbytes for center in self._centers())

    def stats(self) -> Stats:
        """Return what was counted so far: exchanges, staleness, waiting, hiding, bytes."""
        return self.recorder.snapshot()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center's parameters (and buffers) into a model, to evaluate or save it.

        Args:
            model: of the same parameters, found by name where ``model=`` or the optimizer's
                groups gave names, else by the order of the optimizer's one group. The
                worker's own model works too, and then loses the worker's values.

        Raises:
            ConfigError: the parameters differ, or of several groups without names the order
                in the model is unknown; the model is as it was.
        """
        fill_model(
            model, self._best(), self.buffers, self._names, groups=len(self.param_groups)
        )

    # ------------------------------------------------------------------ resuming and ending

    def state_dict(self) -> dict[str, Any]:
        """Return all that :meth:`load_state_dict` needs to go on exactly.

        That is the inner optimizer's state, the worker's parameters (with ``model=`` its
        buffers too), a copy of the center, and what the algorithm keeps itself.
        """
        extra = self._extra_state()  # first: it ends an exchange that is under way
        own = self._own.values()
        return {
            "algorithm": type(self).__name__,
            "steps": self.steps,
            "inner": self.inner.state_dict(),
            "parameters": own[0],
            "buffers": {} if self.buffers is None else own[1],
            "counts": [count.detach().cpu().clone() for count in self._counts],
            "centers": [center.values() for center in self._shared()],
            "extra": extra,
            "origin": self.phase.origin,
        }

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where :meth:`state_dict` was taken.

        The center is restored only where no worker has exchanged anything with it yet (the
        memory is new); of several workers that load, one restores it. A state that this very
        wrapper has returned leaves the center alone: accelerate loads one to move it.

        Args:
            state_dict: as returned by :meth:`state_dict` of the same algorithm.
            force: restore the center in any case.

        Raises:
            ConfigError: it belongs to another algorithm; nothing was changed.
        """
        if state_dict.get("algorithm") != type(self).__name__:
            raise ConfigError(
                "this state belongs to another algorithm", algorithm=state_dict.get("algorithm")
            )
        self.train()
        self.inner.load_state_dict(state_dict["inner"])
        self._adopt()
        self.steps = state_dict["steps"]
        statistics = None if self.buffers is None else self.buffers.flat
        restore(state_dict, self.flat, statistics, self._counts)
        with self.phase.restoring(state_dict.get("origin")) as is_mine:
            for center, values in zip(self._shared(), state_dict["centers"], strict=True):
                if is_mine or force:
                    center.put(values)
        self._load_extra_state(state_dict["extra"])

    def _extra_state(self) -> dict[str, Any]:
        """Return the algorithm's own state as tensors and numbers."""
        return {}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        """Take back what :meth:`_extra_state` returned."""


def fill_model(
    model: torch.nn.Module,
    center: Center,
    buffers: Center | None,
    names: Mapping[int, str],
    *,
    groups: int,
) -> None:
    """Copy centers of parameters and buffers into a model; see ``center_into``."""
    own, theirs = center.flat.tensors, dict(model.named_parameters())
    filled = [(center, counterparts(own, names, theirs, groups=groups))]
    if buffers is not None:
        own, floats = buffers.flat.tensors, named_floats(model)
        filled.append((buffers, counterparts(own, names, floats)))
    for each, targets in filled:
        _fill(each, targets)


@torch.no_grad()
def _fill(center: Center, targets: dict[int, torch.Tensor]) -> None:
    """Copy a center's values into the targets of its tensors."""
    for (buffer, _), values in zip(center, center.values().values(), strict=True):
        for tensor, source in zip(buffer.tensors, buffer.split(values), strict=True):
            targets[id(tensor)].copy_(source)
