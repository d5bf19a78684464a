"""Hogwild: workers of one host step on one shared model without any lock.

Niu, Recht, Re, Wright: Hogwild!, NIPS 2011, arXiv:1106.5730. x the model, in memory that all
workers map; g_i the gradient that worker i computed while other workers changed x:

    x = x - lr * g_i                  element by element, without synchronization

The paper shows near-optimal convergence for sparse gradients. With dense gradients, concurrent
steps may overwrite each other's elements: such lost updates are tolerated, not repaired. No
update crosses a socket: parameters are views of a region with ``consistency="none"``.

Sparse gradients, as of ``nn.Embedding(sparse=True)``, are the paper's case: a step writes only
the rows that it touches, so conflicts are rare.

Variant: a step is that of a torch optimizer on an entire batch, where the paper updates single
coordinates. The optimizer's state is ``shared`` (one momentum, one Adam ``step`` that counts
the steps of all workers) or ``private``. With ``model=`` the batch-norm statistics are shared
like the parameters: every forward pass updates the same running mean and variance, s = (1 - f)
s + f (the batch's).
"""

from __future__ import annotations

import copy
import time
from functools import partial
from typing import Any, Final, Literal

import torch

from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.checks import lease
from smbox_torch.hogwild.model import ModelTensors, tensors_of
from smbox_torch.hogwild.state import SharedState
from smbox_torch.model.matching import names_of
from smbox_torch.model.module_slots import ModuleSlots
from smbox_torch.model.others import check_others
from smbox_torch.model.places import check_places, places_of
from smbox_torch.model.restoring import pairs_of
from smbox_torch.model.sparse_gradients import check_sparse
from smbox_torch.model.tensor_versions import TensorVersions
from smbox_torch.optimizer.center_copy import CenterCopy
from smbox_torch.optimizer.checkpoint import checkpoint, is_plain
from smbox_torch.optimizer.joined import JoinedOptimizer
from smbox_torch.optimizer.stats import Recorder, Stats
from smbox_torch.workers.claim import claim
from smbox_torch.workers.joining import LEASE_S, team_of_comers
from smbox_torch.workers.phase import Phase

__all__ = ["Hogwild"]

TELL_S: Final = 0.5
"""Interval between two progress reports of a worker; a step is shorter."""


class Hogwild(JoinedOptimizer):
    """An optimizer that steps on one shared model, which all workers of a host change.

    The first worker's values initialize the shared model. Workers that join later continue from
    its current values. After wrapping, the model cannot be moved to another device or dtype, or
    be loaded: ``step`` then raises ConfigError.

    Args:
        optimizer: the inner optimizer; it does the steps in place. Its parameters must be on
            the CPU.
        box: the box of a memory node on this host.
        name: name of the run; the prefix of the regions.
        state: whether all workers share the optimizer's state ("shared": SGD with momentum,
            Adagrad, Adam, AdamW) or each has its own ("private"); the same on all workers.
        model: also share the buffers of this model: statistics and batch counts of batch norms.
            All workers must pass it, or none. It also names the parameters for ``center_into``.
        lease_s: seconds without a lease renewal after which ``finish`` of the other workers no
            longer waits for this one; see docs/membership.md.

    Raises:
        TypeError, LimitError: the name of the run is invalid; nothing was created.
        ConfigError: this process cannot map the memory, a tensor is on another device or has a
            dtype that regions do not support, the model has none of the parameters, the state
            cannot be shared, or another algorithm uses the name; the model is unchanged. From
            ``step``: the model was loaded or moved, its tensors or modules were replaced, a
            part of the state would not be shared, or the inner optimizer cannot handle a sparse
            gradient; no step was done.
        LeaseLostError: from ``step``: another process has this worker's rank, or this is a
            forked child of the worker; no step was done.
        LayoutMismatchError: another model uses this name, or the same model with a different
            choice of ``model=``; the model is unchanged.
    """

    _state: SharedState | None = None

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: Box,
        name: str,
        *,
        state: Literal["shared", "private"] = "private",
        model: torch.nn.Module | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        super().__init__(optimizer, model=model)
        if state not in ("shared", "private"):
            raise ConfigError("state is 'shared' or 'private'", state=state)
        lease_s = lease(lease_s)
        self._sharing = state
        self._tensors = tensors_of(optimizer, model)
        self._owner = model
        self._slots = ModuleSlots(model, self._tensors.every)
        self._check_others = partial(check_others, box, name, model, self._wrapped)
        every, agreed = self._tensors.every, self._agreed()
        claim(box, name, type(self).__name__, every, agreed, order=self._order)
        own = self._own_name(name)
        self._views = self._map(box, name)
        self._places = places_of(self._views.every)
        self._state = SharedState(box, f"{own}.state", optimizer) if state == "shared" else None
        self._phase = Phase(box, own)
        self._recorder = Recorder()
        self.team = team_of_comers(box, name, lease_s=lease_s)
        self._join()
        self._tell_s = 0.0
        self._is_private = False
        self._tensors.become(self._views)
        if self._state is not None:
            self._state.install()
        self._versions = TensorVersions(self._tensors.parameters)
        self._has_begun = False

    def _agreed(self) -> dict[str, object]:
        return {"state": self._sharing}

    def _demand_equal_others(self) -> None:
        self._check_others()

    def _inner_loaded(self) -> None:
        super()._inner_loaded()
        if self._state is not None and not self._is_inside:  # else load_state_dict does it
            self._state.install()

    def _own_name(self, name: str) -> str:
        """Return the name under which workers share one model."""
        return name

    def _map(self, box: Box, name: str) -> ModelTensors:
        """Return the shared tensors that replace the model's."""
        (views,) = self._tensors.views(box, name)
        return views

    def _check(self) -> None:
        """Raise ConfigError if a step is impossible or the model was changed since wrapping."""
        self.team.check()
        check_sparse(self.inner)
        if self._state is not None:
            self._state.check()
        self._slots.check()
        check_places(self._tensors.every, self._places, "the shared memory")
        if not self._has_begun and self._versions.have_changed():
            raise ConfigError(
                "the model was changed after the optimizer was wrapped, which overwrote the"
                " shared model of all workers: load the model before wrapping, or load a"
                " checkpoint by load_state_dict of the wrapped optimizer alone"
            )
        self._has_begun = True

    def _advance(self) -> None:
        self._check()
        self._phase.use()
        self.inner.step()
        self.steps += 1
        self._recorder.steps += 1
        now_s = time.monotonic()
        if now_s >= self._tell_s:
            self._tell_s = now_s + TELL_S
            self._note_shared()

    def stats(self) -> Stats:
        """Return the counts: this worker's steps; nothing is exchanged."""
        return self._recorder.snapshot()

    def _evaluated_center(self) -> ModelTensors:
        """Return the values to evaluate: the shared model."""
        return self._views

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the shared model into another one, to evaluate or save it.

        Other workers may change it during the copy, which may therefore mix values of several
        steps.

        Args:
            model: a model with the same parameters. They are matched by name if ``model=`` or
                the optimizer's groups gave names and the model has them, else by their order in
                the optimizer's only group. With ``model=`` the rest of it is copied, too.

        Raises:
            ConfigError: the parameters differ, the model has only some of the names, or the
                optimizer has several groups without names, so that the order is unknown; the
                model is unchanged.
        """
        own, center, groups = self._tensors, self._evaluated_center(), len(self.param_groups)
        filling = CenterCopy(model, names_of(self.inner, self._owner))
        filling.parameters(own.parameters, center.parameters, groups=groups)
        filling.statistics(own.statistics, center.statistics)
        filling.counts(own.counts, center.counts)
        filling.others(self._owner, self._wrapped)
        filling.fill()
        self._versions.record()

    def state_dict(self) -> dict[str, Any]:
        """Return the current values of the model and the optimizer's state."""
        own = self._tensors.copies()
        return checkpoint(
            type(self).__name__,
            rank=self.rank,
            steps=self.steps,
            inner=copy.deepcopy(self.inner.state_dict()),  # other workers may change it
            parameters=own.parameters,
            buffers=own.statistics,
            counts=own.counts,
            origin=self._phase.origin,
            order=self._order,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state that :meth:`state_dict` returned.

        One of the loading workers restores the shared values, and only before the first step of
        any worker; the others wait for it.

        Args:
            state_dict: as returned by :meth:`state_dict` of the same algorithm. The state of a
                plain ``torch.optim`` optimizer is loaded into the inner optimizer only, and
                only its settings if the state is shared.

        Raises:
            ConfigError: the worker has called finish or was closed, or the state belongs to
                another algorithm or model; nothing was changed.
            RequestTimeoutError: the worker that restores seems to be dead.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            if self._state is not None:
                self._state.install()
            return
        self._demand_loadable(state_dict, type(self).__name__)
        kinds = ("parameters", "buffers", "counts")
        saved = pairs_of(self._tensors.every, [t for kind in kinds for t in state_dict[kind]])
        self._load_inner(state_dict["inner"])
        self.steps = state_dict["steps"]
        self._shared_steps = min(self._shared_steps, self.steps)
        restoring = self._phase.restoring(state_dict["origin"])
        with restoring as is_mine, torch.no_grad():
            if is_mine:
                for tensor, values in saved:
                    tensor.copy_(values)
                self._versions.record()
            if self._state is not None:
                if is_mine:
                    self._state.store()
                self._state.install()

    def _share_rest(self) -> None:
        """Report this worker's progress for a successor; the model has every step already."""
        if self.steps > self._shared_steps:
            self._note_shared()

    def _take_center(self) -> None:
        """Return: the model is the shared one."""

    def close(self, *, exchange: bool = True) -> None:
        """Make the model a private copy, and leave the run.

        Args:
            exchange: report this worker's progress for a successor.
        """
        self._detach()
        super().close(exchange=exchange)

    def _detach(self) -> None:
        """Make the model's tensors private copies; no effect if they are."""
        if self._is_private:
            return
        self._views = self._tensors.copies()
        self._tensors.become(self._views)
        if self._state is not None:
            self._state.detach()
        self._is_private = True  # last: after an interrupt, a further close copies again
