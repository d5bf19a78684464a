"""BoxOptimizer: the base class of the optimizers that exchange parameters with a memory box.

A wrapper is a ``torch.optim.Optimizer``: schedulers, hooks and gradient scalers accept it (not
with SyncEASGD, whose workers wait for each other: a scaler may skip the step of one). It has
the groups and state of the inner optimizer. A subclass implements ``_advance``.
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
from smbox_torch.model.buffers import count_buffers, other_buffers
from smbox_torch.model.device import await_device
from smbox_torch.model.flat import FlatParameters, checked
from smbox_torch.model.matching import names_of
from smbox_torch.model.module_slots import ModuleSlots
from smbox_torch.model.others import check_others
from smbox_torch.model.precision import Precision
from smbox_torch.model.restoring import check_same_model, restore
from smbox_torch.model.sparse_gradients import check_sparse
from smbox_torch.model.worker_values import WorkerValues
from smbox_torch.optimizer.batch_counts import BatchCounts
from smbox_torch.optimizer.center import Center, Shared, center_of_buffers, statistics_of
from smbox_torch.optimizer.center_copy import CenterCopy
from smbox_torch.optimizer.checkpoint import checkpoint, is_plain
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

    The constructor makes the parameters views of flat buffers and sets them to the center,
    which begins with the first worker's values. Groups, device and dtype are then fixed.

    Args:
        optimizer: does the local steps; its parameters are exchanged.
        box: the memory box; the caller closes it.
        name: name of the run; the prefix of all regions, counters and barriers.
        model: also exchange the floating-point buffers (batch norm) of this model, in separate
            regions. Its other parameters must be equal on all workers, see ``model.others``.
            ``center_into`` matches parameters by its names.
        workers: their number, or a member from ``smbox.join``; None: as set by the launcher.
        rank: rank of this worker; None: as set by the launcher, else the lowest free rank.
        lease_s: seconds without a lease renewal after which this worker counts as dead.
        gradients: make the gradients of each step views of flat buffers.
        center_dtype: dtype of the center's regions; a wider one of the model takes precedence.
        wire: dtype in which this worker sends and fetches: "float16" or "bfloat16" with a
            float32 center; None: the model's. See docs/algorithms/precision.md.

    Attributes:
        steps: number of local steps; initially those of a dead worker that had this rank.
        team: the workers of this run; see docs/membership.md.
        own: the worker's own values, also while ``eval`` has put the center into the model.

    Raises:
        TypeError, LimitError: an argument has a wrong type, or the name of the run is invalid.
        ConfigError: invalid arguments, an unknown number of workers, a member or name in use,
            parameters that cannot be exchanged, or another order; nothing was changed.
        RankTakenError: another live process has this rank; nothing was changed.
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
        self._names = names_of(optimizer, model)
        agreed = self._agreed() | statistics_of(model)
        claim(box, name, type(self).__name__, members, agreed, order=self._order)
        self._model = model
        self.team = team_of(box, name, workers, rank=rank, lease_s=lease_s)
        self._join()
        self.flat = FlatParameters(members, gradients=gradients, precision=self._precision)
        self.phase = Phase(box, name)
        self.center = Center(box, name, self.flat)
        self.buffers = center_of_buffers(box, name, model, self._precision)
        self.counts = BatchCounts(box, name, model if self.shares_counts else None)
        self.counts.share()
        flats = [center.flat for center in self._centers()]
        self._slots = ModuleSlots(model, chain.from_iterable(flat.tensors for flat in flats))
        self._other_buffers = [] if model is None else other_buffers(model)
        self._own = self.own = WorkerValues(flats)
        self._remember()

    def _local_step(self) -> None:
        """Run one step of the inner optimizer."""
        self.inner.step()
        self._count_step()

    def _count_step(self) -> None:
        self.steps += 1
        self.recorder.step()

    @contextmanager
    def _exchanging(self, nbytes: int) -> Iterator[None]:
        """Count the block as one exchange for which the training thread waits."""
        self._begin_exchange()
        await_device(self.flat.tensors[0])  # what the gradient takes is no wait
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

    def _demand_equal_others(self) -> None:
        check_others(self.box, self.name, self._model, self._wrapped)

    def _prepare_gradients(self) -> None:
        """Make flat gradients; else raise ConfigError for a sparse one that cannot be used."""
        if self._flat_gradients:
            self.flat.attach_gradients()  # they are dense then
        else:
            check_sparse(self.inner)

    def _demand_exchangeable(self) -> None:
        """Raise ConfigError if parameters or buffers of the model were replaced."""
        self._demand_unchanged()
        self._slots.check()

    def _centers(self) -> Iterator[Center]:
        """Iterate over the center of the parameters and, if it exists, that of the buffers."""
        yield self.center
        if self.buffers is not None:
            yield self.buffers

    def _move_buffers(self, moving_rate: float) -> None:
        """Exchange the batch-norm buffers elastically, so that no variance becomes negative."""
        if self.buffers is not None:
            self.buffers.elastic(moving_rate)
        self.counts.share()

    def _average_buffers(self) -> None:
        """Exchange the buffers at the default moving rate, and count the bytes."""
        self._move_buffers(FUSED_MOVING_RATE)
        floats = self.center
        self.recorder.nbytes += self.exchange_nbytes - floats.sent_nbytes - floats.nbytes

    def _evaluated_center(self) -> Center:
        """Return the values to evaluate: the center, or an average of it."""
        return self.center

    def _take_center(self) -> None:
        self._evaluated_center().take()
        if self.buffers is not None:
            self.buffers.take()
        self.counts.share()

    def _shared(self) -> Iterator[Shared]:
        """Iterate over the shared state that a checkpoint must contain."""
        return self._centers()

    @property
    def exchange_nbytes(self) -> int:
        """Bytes of one elastic exchange of parameters and buffers: operands and answers."""
        return self.counts.nbytes + sum(c.sent_nbytes + c.nbytes for c in self._centers())

    def stats(self) -> Stats:
        """Return the counts so far: exchanges, staleness, waiting and hidden time, bytes."""
        return self.recorder.snapshot()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the center's parameters (and buffers) into a model, to evaluate or save it.

        Args:
            model: a model with the same parameters. They are matched by name if ``model=`` or
                the optimizer's groups gave names and the model has them, else by their order in
                the optimizer's only group. Prefixes of wrappers (``module.`` of DDP,
                ``_orig_mod.`` of torch.compile) are ignored. With ``model=``, batch counts
                get the largest of any worker; other integers and parameters are copied.

        Raises:
            ConfigError: parameters, names or ties differ, or the order is unknown (several
                groups without names); the model is unchanged.
        """
        filling = CenterCopy(model, self._names)
        center, groups = self._evaluated_center(), len(self.param_groups)
        filling.parameters(center.flat.tensors, center.tensors(), groups=groups)
        if self.buffers is not None:
            filling.statistics(self.buffers.flat.tensors, self.buffers.tensors())
        if self._model is not None:
            self.counts.share()
            filling.counts(count_buffers(self._model))
        filling.others(self._model, self._wrapped)
        filling.fill()
        self._remember_filled(model)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of worker, inner optimizer, center and algorithm, for resuming."""
        extra = self._extra_state()  # first: it waits for an exchange in progress
        parameters, *buffers = self.own.values()
        return checkpoint(
            type(self).__name__,
            rank=self.rank,
            steps=self.steps,
            shared=self._shared_steps,
            inner=self.inner.state_dict(),
            parameters=parameters,
            buffers=buffers[0] if buffers else {},
            counts=[each.detach().cpu().clone() for each in self._other_buffers],
            centers=[center.values() for center in self._shared()],
            extra=extra,
            origin=self.phase.origin,
            shapes=self.flat.shapes,
            order=self._order,
        )

    def load_state_dict(self, state_dict: dict[str, Any], *, force: bool = False) -> None:
        """Resume from a state that :meth:`state_dict` returned.

        One of the loading workers restores the center, and only if no worker has exchanged with
        it yet. A state of this same wrapper does not change the center (accelerate loads one).
        Updates that the saved worker had not shared are shared by the worker with its rank.

        Args:
            state_dict: as returned by :meth:`state_dict` of the same algorithm. The state of a
                plain ``torch.optim`` optimizer is loaded into the inner optimizer only.
            force: restore the center in any case.

        Raises:
            ConfigError: the worker has called finish or was closed, or the state is of another
                algorithm or model; nothing was changed.
            LeaseLostError: another process has this worker's rank; the center is unchanged.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            return
        self._demand_loadable(state_dict, type(self).__name__)
        statistics = None if self.buffers is None else self.buffers.flat
        check_same_model(state_dict, self.flat, statistics, self._other_buffers)
        self.train()
        self._load_inner(state_dict["inner"])
        self.steps = state_dict["steps"]
        is_left = force or self._shared_steps < self.steps  # else it was shared meanwhile
        is_left &= state_dict["rank"] == self.rank
        self._note_shared(state_dict["shared"] if is_left else None)
        restore(state_dict, self.flat, statistics, self._other_buffers)
        with self.phase.restoring(state_dict["origin"]) as is_mine:
            if is_mine or force:
                for center, values in zip(self._shared(), state_dict["centers"], strict=True):
                    center.put(values)
        self._load_extra_state(state_dict["extra"])
        if not is_left:
            self._forget_unshared()
        self._remember()

    def _extra_state(self) -> dict[str, Any]:
        """Return the algorithm's own state as tensors and numbers."""
        return {}

    def _load_extra_state(self, extra: dict[str, Any]) -> None:
        """Restore what :meth:`_extra_state` returned."""
