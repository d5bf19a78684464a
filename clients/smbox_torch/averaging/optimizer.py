"""An optimizer whose gradients are the mean of all ranks': what all such classes share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.checks import real
from smbox_torch.model.flat import unique
from smbox_torch.model.matching import counterparts, names_of
from smbox_torch.model.restoring import pairs_of
from smbox_torch.optimizer.checkpoint import checkpoint, demand_algorithm, is_plain
from smbox_torch.optimizer.stats import Stats
from smbox_torch.optimizer.wrapped import WrappedOptimizer

__all__ = ["AveragingOptimizer"]


class AveragingOptimizer(WrappedOptimizer):
    """An optimizer that steps with the mean gradient of all ranks.

    After ``backward`` the gradients are the mean already, so clipping, gradient scaling and
    guards work as in a run of one worker: they see the same on all ranks, and all ranks step or
    none. ``step`` raises StepMismatchError where a rank skipped a step or finished early.

    All ranks hold the same parameters and state of the optimizer inside: those who load or
    change them do it alike on all ranks. Where they do not, the next ``backward`` raises
    ConfigError on all ranks and names those that differ; writes by ``parameter.data`` of one
    rank are not noticed.

    A subclass sets ``_rounds``, ``_frozen``, the parameters that have no place in the mean, and
    ``_model``, whose buffers are kept in step.

    Attributes:
        steps: so far, those before a checkpoint too.
        workers: number of ranks in the run.
    """

    steps: int = 0
    workers: int

    _rounds: GradientRounds
    _model: torch.nn.Module | None = None
    _frozen: Sequence[torch.Tensor] = ()

    @property
    def weight(self) -> float:
        """How much this rank's next gradients count; with a mean loss, its batch size."""
        return self._rounds.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if not 0.0 < real("weight", weight) < math.inf:
            raise ConfigError("a weight is a number above zero", weight=weight)
        self._rounds.weight = float(weight)

    def _advance(self) -> None:
        self.synchronize()
        self._step()

    def synchronize(self) -> None:
        """Make the gradients the mean now, if backward has not (it had nothing to do here).

        Raises:
            StepMismatchError: a rank skipped a step, or finished; gradients are undefined.
            WorkerLostError: a rank died, left or did not come; gradients are undefined.
            ConfigError: a parameter was unfrozen after the wrapping, or the optimizer was
                closed; nothing happened.
        """
        self._demand_open()
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ConfigError(
                "a parameter that was frozen when the optimizer was wrapped has no place in the"
                " mean: unfreeze first, then wrap"
            )
        if not self._rounds.is_synced:
            self._rounds.finish()

    def _step(self) -> None:
        """Step with the gradients as they are; all ranks do it."""
        self._rounds.equal_state.detect_writes()
        self.inner.step()
        self.steps += 1
        self._rounds.recorder.steps += 1
        self._rounds.stepped()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's
        """Clear the gradients."""
        self._rounds.discard()
        super().zero_grad(set_to_none)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients add up locally; the first backward outside averages the sums."""
        before, self._rounds.enabled = self._rounds.enabled, False
        try:
            yield
        finally:
            self._rounds.enabled = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let ranks run out of batches at different times.

        A rank that is through its loop follows the others' rounds with weight 0, and their
        steps, until all are through. Then all take the parameters, and the optimizer's tensors
        of parameters' shapes and dtypes, of the rank whose loop did the most steps: only that
        loop did what it does to gradients before a step. Every rank's loop must be inside.

        Raises:
            StepMismatchError: a rank skipped a step that others did.
            WorkerLostError: a rank died, left or did not come.
        """
        yield
        with torch.no_grad():
            self._rounds.follow(self._step, self._is_awaited)
            self._rounds.agree(self.inner.state)

    def _is_awaited(self) -> bool:
        """Tell whether another rank is in the middle of a step that needs this one."""
        return False

    @torch.no_grad()
    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the parameters (and buffers), which all ranks have in common, into a model.

        Args:
            model: of the same parameters, found by name where ``model=`` or the optimizer's
                groups gave names, else by the order of the optimizer's one group.

        Raises:
            ConfigError: the parameters differ, or of several groups without names the order
                in the model is unknown; the model is as it was.
        """
        own = unique(self._members())
        names, groups = names_of(self.inner, self._model), len(self.param_groups)
        targets = counterparts(own, names, dict(model.named_parameters()), groups=groups)
        if self._model is not None:
            buffers = unique(self._model.buffers())
            targets |= counterparts(buffers, names, dict(model.named_buffers()))
            own += buffers
        for tensor in own:
            targets[id(tensor)].copy_(tensor)

    def _held(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return parameters and buffers, each once."""
        return unique(self._members()), [] if self._model is None else unique(
            self._model.buffers()
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to go on; the same on every rank.

        That is the optimizer's state inside, the parameters, and with ``model=`` its buffers.
        """
        held = self._held()
        parameters, buffers = ([t.detach().cpu().clone() for t in each] for each in held)
        return checkpoint(
            type(self).__name__,
            rank=self.rank,
            steps=self.steps,
            inner=self.inner.state_dict(),
            parameters=parameters,
            buffers=buffers,
        )

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken; every rank loads what any rank has saved.

        Args:
            state_dict: of the same algorithm. One of a plain ``torch.optim`` optimizer sets the
                optimizer inside and leaves all else alone.

        Raises:
            ConfigError: it belongs to another algorithm or model; nothing was changed. From the
                next ``backward``, on all ranks: they have not loaded the same.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            return
        demand_algorithm(state_dict, type(self).__name__)
        parameters, buffers = self._held()
        pairs = pairs_of(parameters, state_dict["parameters"])
        if buffers and state_dict["buffers"]:
            pairs += pairs_of(buffers, state_dict["buffers"])
        self._load_inner(state_dict["inner"])
        for tensor, saved in pairs:
            tensor.copy_(saved)
        self.steps = state_dict["steps"]
        self._remember()

    def _load_inner(self, state_dict: dict[str, Any]) -> None:
        super()._load_inner(state_dict)
        self._rounds.equal_state.is_due = True

    def stats(self) -> Stats:
        """Return what was counted: rounds of averaging as exchanges, waiting, bytes."""
        return self._rounds.recorder.snapshot()

    def finish(self, *, timeout_s: float | None = None) -> None:  # noqa: ARG002 - others wait
        """End the run; all ranks hold the same parameters, and nobody waits for anybody.

        Args:
            timeout_s: as other optimizers take it.

        Raises:
            ConfigError: it was closed before; nothing was changed.
        """
        self._demand_finishable()
        self.close()

    def close(self, *, exchange: bool = True) -> None:  # noqa: ARG002 - as other optimizers
        """Leave the others; a rank that still steps learns that this one has finished."""
        self._rounds.close()
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error the others learn that this rank has left."""
        if error is not None:
            self._rounds.close(in_order=False)
        self.close()
