"""Hogwild: workers of one host step on one shared model without any lock.

Niu, Recht, Re, Wright: Hogwild!, NIPS 2011, arXiv:1106.5730. x the model, in memory that all
workers map; g_i the gradient that worker i computed from whatever x was while it read it:

    x = x - lr * g_i                  element by element, whoever else writes at that moment

The paper shows near-optimal convergence for sparse gradients. With dense ones two steps may
overwrite each other's element: such losses are tolerated, not repaired. No update crosses a
socket: parameters are views of a region with ``consistency="none"``.

Sparse gradients, as of ``nn.Embedding(sparse=True)``, are the paper's case: a step stores to
the rows it touches and to no other, so two workers seldom meet.

Variant: steps of a torch optimizer on whole batches instead of the paper's single coordinates.
Its state is ``shared`` (one momentum, one Adam ``step`` that counts everybody's steps) or
``private``. With ``model=`` the statistics of batch norms are shared like the parameters: every
forward changes the same running mean and variance, s = (1 - f) s + f (the batch's).
"""

from __future__ import annotations

import copy
import time
from typing import Any, Final, Literal

import torch

from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.checks import lease
from smbox_torch.hogwild.model import ModelTensors, Places, tensors_of
from smbox_torch.hogwild.state import SharedState
from smbox_torch.model.flat import check_views
from smbox_torch.model.restoring import pairs_of
from smbox_torch.model.sparse_gradients import check_sparse
from smbox_torch.model.tensor_versions import TensorVersions
from smbox_torch.optimizer.checkpoint import checkpoint, demand_algorithm, is_plain
from smbox_torch.optimizer.joined import JoinedOptimizer
from smbox_torch.optimizer.stats import Recorder, Stats
from smbox_torch.workers.claim import claim
from smbox_torch.workers.joining import LEASE_S, team_of_comers
from smbox_torch.workers.phase import Phase

__all__ = ["Hogwild"]

TELL_S: Final = 0.5
"""Between two times that a worker tells how far it is: a step is shorter than that."""


class Hogwild(JoinedOptimizer):
    """An optimizer whose parameters are the one model that all workers of a host change.

    The model begins as the first worker's; whoever comes later finds what it has become. It
    cannot be moved to another device or dtype, nor be loaded, afterwards: ``step`` raises
    ConfigError then.

    Args:
        optimizer: does the steps, in place; its parameters must be on the CPU.
        box: of a memory node on this host.
        name: of the run: prefix of the regions.
        state: whether the optimizer's state is one for all ("shared": SGD with momentum,
            Adagrad, Adam, AdamW) or each worker's own ("private"); the same on all workers.
        model: share its buffers too, the statistics and batch counts of its batch norms; all
            workers give it, or none. Names its parameters for ``center_into``.
        lease_s: seconds without a sign of life after which ``finish`` waits no more for this
            worker; see docs/membership.md.

    Raises:
        TypeError, LimitError: no run can have this name; nothing was made.
        ConfigError: this process cannot map the memory, a tensor is on another device or of a
            dtype that regions lack, the model has none of the parameters, the state cannot be
            shared, or another algorithm uses the name; the model is as it was. From ``step``:
            the model was loaded, moved or got other tensors since, or a gradient is sparse that
            the optimizer needs dense; nothing was stepped.
        LayoutMismatchError: another model runs under this name, or the same one with or
            without ``model=``; the model is as it was.
    """

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
        self._places = Places(model, self._tensors.every)
        own = self._own_name(name)
        self._views = self._map(box, name)
        self._state = SharedState(box, f"{own}.state", optimizer) if state == "shared" else None
        self._phase = Phase(box, own)
        self._recorder = Recorder()
        self._join(team_of_comers(box, name, lease_s=lease_s))
        self._tell_s = 0.0
        self._is_private = False
        self._tensors.become(self._views)
        self._versions = TensorVersions(self._tensors.parameters)
        self._has_begun = False

    def _agreed(self) -> dict[str, object]:
        return {"state": self._sharing}

    def _own_name(self, name: str) -> str:
        """Return the name of those who share one model."""
        return name

    def _map(self, box: Box, name: str) -> ModelTensors:
        """Return the tensors that the model's become."""
        claim(box, name, type(self).__name__, self._tensors.every, self._agreed())
        (views,) = self._tensors.views(box, name)
        return views

    def _check(self) -> None:
        """Raise ConfigError if the model cannot be stepped, or is not what was wrapped."""
        check_sparse(self.inner)
        self._places.check()
        check_views(self._tensors.every, self._views.every, "the shared memory")
        if not self._has_begun and self._versions.have_changed():
            raise ConfigError(
                "the model was changed after the optimizer was wrapped, which overwrote what"
                " all workers share: load the model before, or a checkpoint by load_state_dict"
                " of the wrapped optimizer"
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
        """Return what was counted: this worker's steps; nothing is exchanged."""
        return self._recorder.snapshot()

    def _evaluated_center(self) -> ModelTensors:
        """Return what is evaluated: the shared model."""
        return self._views

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the shared model into another one, to evaluate or save it.

        Others may change it meanwhile: the copy is a mixture of moments.

        Args:
            model: of the same parameters, found by name where ``model=`` or the optimizer's
                groups gave names, else by the order of the optimizer's one group; with
                ``model=`` statistics and counts are copied too.

        Raises:
            ConfigError: the parameters differ, or of several groups without names the order
                in the model is unknown; the model is as it was.
        """
        self._evaluated_center().into(model, self._tensors, self.inner, self._owner)
        self._versions.record()

    def state_dict(self) -> dict[str, Any]:
        """Return the model and the optimizer's state as this worker sees them now."""
        own = self._tensors.copies()
        return checkpoint(
            type(self).__name__,
            rank=self.rank,
            steps=self.steps,
            inner=copy.deepcopy(self.inner.state_dict()),  # others go on changing it
            parameters=own.parameters,
            buffers=own.statistics,
            counts=own.counts,
            origin=self._phase.origin,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        What is shared is restored by one of the workers that load, and only before the first
        step of any; the others wait for it.

        Args:
            state_dict: of the same algorithm. One of a plain ``torch.optim`` optimizer sets the
                optimizer inside, its state if that is private, and leaves all else alone.

        Raises:
            ConfigError: it belongs to another algorithm or model; nothing was changed.
            RequestTimeoutError: the worker that restores seems dead.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            if self._state is not None:
                self._state.install()
            return
        demand_algorithm(state_dict, type(self).__name__)
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
        """Tell a successor how far this worker came; the model has every step already."""
        if self.steps > self._shared_steps:
            self._note_shared()

    def _take_center(self) -> None:
        """Keep the model, which is the shared one."""

    def close(self, *, exchange: bool = True) -> None:
        """Take a copy of the model and leave: from then on its tensors are private.

        Args:
            exchange: tell a successor how far this worker came.
        """
        self._detach()
        super().close(exchange=exchange)

    def _detach(self) -> None:
        """Make the model's tensors private copies; harmless if they are."""
        if self._is_private:
            return
        self._is_private = True
        self._views = self._tensors.copies()
        self._tensors.become(self._views)
        if self._state is not None:
            self._state.detach()
