"""The base of all algorithms: an optimizer around an optimizer, for an unchanged training loop.

A wrapper is a ``torch.optim.Optimizer``: schedulers, hooks and gradient scalers take it as one
(but for SyncEASGD, whose steps meet: a scaler that leaves out one worker's step parts them).
Groups and state are those of the optimizer inside. ``_advance`` of a subclass is one step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from smbox import Member
from smbox_torch.boxes import BoxLike
from smbox_torch.model.flat import FlatParameters, checked, other_buffers
from smbox_torch.model.matching import names_of
from smbox_torch.model.module_slots import ModuleSlots
from smbox_torch.model.precision import Precision
from smbox_torch.model.restoring import restore
from smbox_torch.model.sparse_gradients import check_sparse
from smbox_torch.model.worker_values import WorkerValues
from smbox_torch.optimizer.batch_counts import BatchCounts
from smbox_torch.optimizer.center import Center, Shared, center_of_buffers, statistics_of
from smbox_torch.optimizer.center_copy import CenterCopy
from smbox_torch.optimizer.checkpoint import checkpoint, demand_algorithm, is_plain
from smbox_torch.optimizer.joined import JoinedOptimizer
from smbox_torch.optimizer.moving_rate import FUSED_MOVING_RATE
from smbox_torch.optimizer.stats import Recorder, Stats
from smbox_torch.workers.claim import claim
from smbox_torch.workers.joining import LEASE_S, Workers, check_workers, team_of
from smbox_torch.workers.phase import Phase
from smbox_torch.workers.team import check_uncounted

__all__ = ["BoxOptimizer"]


class BoxOptimizer(JoinedOptimizer):
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
        center_dtype: of the center and of all that lies beside it, unless the model's is wider.
        wire: in which this worker sends operands and fetches: "float16" or "bfloat16" for a
            center of float32; None: the model's dtype. See docs/algorithms/precision.md.

    Attributes:
        steps: local steps so far; under a dead predecessor's rank it begins at its steps.
        team: who works in this run; docs/membership.md.
        own: the worker's values, also while ``eval`` lends its model.

    Raises:
        TypeError, LimitError: an argument of a wrong type, or no run can have this name.
        ConfigError: impossible arguments, an unknown number of workers, another optimizer's
            member or name, or parameters that cannot be exchanged; nothing was created.
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
        center_dtype: str = "float32",
        wire: str | None = None,
    ) -> None:
        super().__init__(optimizer, model=model)
        self.box = box
        self.name = name
        self.recorder = Recorder()
        self._flat_gradients = gradients
        self._precision = Precision(center_dtype, wire)
        members = checked(self._members(), self._precision)
        check_workers(workers, rank=rank, lease_s=lease_s)
        if isinstance(workers, Member):
            check_uncounted(workers)
        agreed = self._agreed() | statistics_of(model)
        claim(box, name, type(self).__name__, members, agreed)
        self._model = model
        self._join(team_of(box, name, workers, rank=rank, lease_s=lease_s))
        with self._leaving_on_error():
            self.flat = FlatParameters(members, gradients=gradients, precision=self._precision)
            self.phase = Phase(box, name)
            self.center = Center(box, name, self.flat)
            self.buffers = center_of_buffers(box, name, model, self._precision)
            self.counts = BatchCounts(box, name, model if self.shares_counts else None)
            self.counts.share()
        flats = [center.flat for center in self._centers()]
        self._slots = ModuleSlots(model, chain.from_iterable(flat.tensors for flat in flats))
        self._counts = [] if model is None else other_buffers(model)
        self._names = names_of(optimizer, model)
        self._own = self.own = WorkerValues(flats)
        self._remember()

    def _local_step(self) -> None:
        """Let the optimizer inside do its step."""
        self.inner.step()
        self._count_step()

    def _count_step(self) -> None:
        self.steps += 1
        self.recorder.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's
        """Clear the gradients; flat gradients are set to zero and stay where they are."""
        if self._flat_gradients:
            self.flat.zero_gradients()
        else:
            super().zero_grad(set_to_none)

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
        self._demand_open()
        self.team.check()
        self.own.check()
        self._demand_exchangeable()
        self.phase.use()

    def _demand_unchanged(self) -> None:
        """Raise ConfigError, before the first step, if the model is not what it was given."""
        self.flat.check()
        super()._demand_unchanged()

    def _demand_gradients(self) -> None:
        """Raise ConfigError if the optimizer inside would refuse a sparse gradient."""
        if not self._flat_gradients:  # flat ones are dense
            check_sparse(self.inner)

    def _demand_exchangeable(self) -> None:
        """Raise ConfigError if the model got other parameters or buffers since."""
        self._demand_unchanged()
        self._slots.check()

    def _centers(self) -> Iterator[Center]:
        """Iterate over parameters' and, if there are any, buffers' centers."""
        yield self.center
        if self.buffers is not None:
            yield self.buffers

    def _move_buffers(self, moving_rate: float) -> None:
        """Pull batch-norm buffers and their center together: no variance becomes negative."""
        if self.buffers is not None:
            self.phase.use()
            self.buffers.elastic(moving_rate)
        self.counts.share()

    def _average_buffers(self) -> None:
        """Move the buffers by the default rate, and count the bytes."""
        self._move_buffers(FUSED_MOVING_RATE)
        floats = self.center
        self.recorder.nbytes += self.exchange_nbytes - floats.sent_nbytes - floats.nbytes

    def _evaluated_center(self) -> Center:
        """Return what is evaluated in the end: the center, or an average of it."""
        return self.center

    def _take_center(self) -> None:
        self._evaluated_center().take()
        if self.buffers is not None:
            self.buffers.take()
        self.counts.share()

    def _shared(self) -> Iterator[Shared]:
        """Iterate over all that a checkpoint must hold of what the workers share."""
        return self._centers()

    @property
    def exchange_nbytes(self) -> int:
        """Bytes of an elastic exchange of everything: operands and answers."""
        return self.counts.nbytes + sum(c.sent_nbytes + c.nbytes for c in self._centers())

    def stats(self) -> Stats:
        """Return what was counted so far: exchanges, staleness, waiting, hiding, bytes."""
        return self.recorder.snapshot()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center's parameters (and buffers) into a model, to evaluate or save it.

        Args:
            model: of the same parameters, found by name where ``model=`` or the optimizer's
                groups gave names, else by the order of the optimizer's one group. The
                worker's own model works too, and then loses the worker's values. Wrappers in
                names (``module.`` of DDP, ``_orig_mod.`` of torch.compile) do not matter.
                With ``model=`` integer buffers are the most that anybody counted.

        Raises:
            ConfigError: the parameters differ, or of several groups without names the order
                in the model is unknown; the model is as it was.
        """
        filling = CenterCopy(model, self._names)
        filling.parameters(self._evaluated_center(), groups=len(self.param_groups))
        if self.buffers is not None:
            filling.statistics(self.buffers)
        if self._model is not None:
            self.counts.share()
            filling.counts(self._model)
        filling.fill()
        self._remember_filled(model)

    # ------------------------------------------------------------------ resuming and ending

    def state_dict(self) -> dict[str, Any]:
        """Return all that :meth:`load_state_dict` needs to go on exactly.

        The inner optimizer's state, the worker's values, a copy of the center, and the rest.
        """
        extra = self._extra_state()  # first: it ends an exchange that is under way
        parameters, *buffers = self.own.values()
        return checkpoint(
            type(self).__name__,
            rank=self.rank,
            steps=self.steps,
            inner=self.inner.state_dict(),
            parameters=parameters,
            buffers=buffers[0] if buffers else {},
            counts=[count.detach().cpu().clone() for count in self._counts],
            centers=[center.values() for center in self._shared()],
            extra=extra,
            origin=self.phase.origin,
        )

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Go on where :meth:`state_dict` was taken.

        The center is restored only where no worker has exchanged anything with it yet (the
        memory is new), by one of those that load; a state of this very wrapper leaves it alone
        (accelerate loads one). What its worker had not shared, the worker of its rank shares.

        Args:
            state_dict: as returned by :meth:`state_dict` of the same algorithm. One of a plain
                ``torch.optim`` optimizer sets the optimizer inside and leaves all else alone.
            force: restore the center in any case.

        Raises:
            ConfigError: it belongs to another algorithm, or the optimizer inside is of other
                parameters; nothing was changed.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            return
        demand_algorithm(state_dict, type(self).__name__)
        self.train()
        self._load_inner(state_dict["inner"])
        self.steps = state_dict["steps"]
        is_left = force or self._shared_steps < self.steps  # else it was shared since
        self._shared_steps = min(self._shared_steps, self.steps)
        statistics = None if self.buffers is None else self.buffers.flat
        restore(state_dict, self.flat, statistics, self._counts)
        with self.phase.restoring(state_dict["origin"]) as is_mine:
            if is_mine or force:
                for center, values in zip(self._shared(), state_dict["centers"], strict=True):
                    center.put(values)
        self._load_extra_state(state_dict["extra"])
        if state_dict["rank"] != self.rank or not is_left:
            self._forget_unshared()
        self._remember()

    def _extra_state(self) -> dict[str, Any]:
        """Return the algorithm's own state as tensors and numbers."""
        return {}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        """Take back what :meth:`_extra_state` returned."""

    def _forget_unshared(self) -> None:
        """Begin at x with nothing to share: another worker shares what the state had left."""
