"""AveragingOptimizer: the base class of optimizers that average gradients over all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from smbox.errors import ConfigError
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.averaging.mean import buffers_of
from smbox_torch.checks import real
from smbox_torch.model.flat import unique
from smbox_torch.model.matching import names_of
from smbox_torch.model.restoring import pairs_of
from smbox_torch.optimizer.center_copy import CenterCopy
from smbox_torch.optimizer.checkpoint import checkpoint, is_plain
from smbox_torch.optimizer.stats import Stats
from smbox_torch.optimizer.wrapped import WrappedOptimizer

__all__ = ["AveragingOptimizer"]


class AveragingOptimizer(WrappedOptimizer):
    """An optimizer that steps with the mean gradient of all ranks.

    When ``backward`` returns, the gradients are the mean. Clipping, gradient scaling and checks
    therefore see the same values on all ranks, and all ranks step or none does. ``step`` raises
    StepMismatchError if a rank skipped a step or finished early.

    All ranks must have the same parameters, state and settings (learning rate) of the inner
    optimizer: load or change them equally on all ranks. If they differ, the next ``backward``
    raises ConfigError on all ranks and names the ranks that differ. Writes through
    ``parameter.data`` on one rank go undetected.

    A subclass sets ``_rounds``; ``_frozen``, the parameters that are not averaged; and
    ``_model``, the model whose buffers are kept equal.

    Attributes:
        steps: number of steps, including those before a checkpoint was loaded.
        workers: number of ranks in the run.
    """

    steps: int = 0

    _rounds: GradientRounds
    _model: torch.nn.Module | None = None
    _frozen: Sequence[torch.Tensor] = ()
    _rounding_errors: Sequence[torch.Tensor] = ()

    @property
    def weight(self) -> float:
        """Weight of this rank's next gradients; with a mean loss, use the batch size."""
        return self._rounds.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if not 0.0 < real("weight", weight) < math.inf:
            raise ConfigError("weight must be finite and above zero", weight=weight)
        self._rounds.weight = float(weight)

    def _advance(self) -> None:
        self.synchronize()
        self._step()

    def synchronize(self) -> None:
        """Average the gradients now, if backward has not done it.

        Raises:
            StepMismatchError: a rank skipped a step, or finished; gradients are undefined.
            WorkerLostError: a rank died, left or did not arrive; gradients are undefined.
            ConfigError: a parameter was unfrozen after the optimizer was wrapped, or the
                optimizer was closed; nothing was changed.
        """
        self._demand_open()
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ConfigError(
                "a parameter was unfrozen after the optimizer was wrapped, and its gradient is"
                " not averaged: unfreeze first, then wrap"
            )
        if not self._rounds.is_synced:
            self._rounds.finish()

    def _step(self) -> None:
        """Step with the current gradients; all ranks do it."""
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
        """Accumulate gradients locally; the next backward after the block averages the sums."""
        before, self._rounds.enabled = self._rounds.enabled, False
        try:
            yield
        finally:
            self._rounds.enabled = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """Allow ranks to have different numbers of batches; each rank's loop is in the block.

        A rank that has ended its loop takes part in the averaging with weight 0, and does the
        same steps, until all ranks have ended their loops. Then all ranks copy the parameters
        and the optimizer's state tensors (those with the shape and dtype of their parameter)
        of the rank whose loop did the most steps, because only that loop changed the gradients
        (clipping, scaling) before each step.

        Raises:
            StepMismatchError: a rank skipped a step that others did.
            WorkerLostError: a rank died, left or did not arrive.
        """
        yield
        with torch.no_grad():
            self._rounds.follow(self._step, self._is_awaited)
            if self._rounds.agree(self.inner.state):
                for each in self._rounding_errors:
                    each.zero_()  # those of ranks whose parameters differed

    def _is_awaited(self) -> bool:
        """Return whether another rank waits for this one within a step."""
        return False

    @torch.no_grad()
    def eval(self) -> None:
        """Put the center into the model, or a schedule-free inner optimizer into ``eval`` mode.

        The second holds without a center. All ranks call it.
        """
        if self._own is None:
            self._set_inner("eval")
        else:
            super().eval()

    def center_into(self, model: torch.nn.Module) -> None:
        """Copy the parameters (and buffers), which are equal on all ranks, into a model.

        Args:
            model: a model with the same parameters. They are matched by name if ``model=`` or
                the optimizer's groups gave names and the model has them, else by their order in
                the optimizer's only group.

        Raises:
            ConfigError: the parameters differ, the model has only some of the names, or the
                optimizer has several groups without names, so that the order is unknown; the
                model is unchanged.
        """
        parameters, buffers = self._held()
        filling = CenterCopy(model, names_of(self.inner, self._model))
        filling.parameters(parameters, parameters, groups=len(self.param_groups))
        filling.buffers(buffers)
        filling.others(self._model, parameters)
        filling.fill()

    def _held(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return parameters and buffers, each once."""
        return unique(self._members()), buffers_of(self._model)

    def state_dict(self) -> dict[str, Any]:
        """Return the state with which :meth:`load_state_dict` resumes; the same on every rank.

        It contains the state of the inner optimizer, the parameters, and with ``model=`` the
        buffers.
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
            order=self._order,
        )

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from the state of any rank; all ranks load the same state.

        Args:
            state_dict: as returned by :meth:`state_dict` of the same algorithm. The state of a
                plain ``torch.optim`` optimizer is loaded into the inner optimizer only.

        Raises:
            ConfigError: the worker has called finish or was closed, or the state belongs to
                another algorithm or model, or has buffers and ``model=`` was not passed;
                nothing was changed.
                From the next ``backward``, on all ranks: the ranks loaded different states.
        """
        if is_plain(state_dict):
            self._load_inner(state_dict)
            return
        self._demand_loadable(state_dict, type(self).__name__)
        parameters, buffers = self._held()
        pairs = pairs_of(parameters, state_dict["parameters"])
        if state_dict["buffers"]:
            pairs += pairs_of(buffers, state_dict["buffers"])
        self._load_inner(state_dict["inner"])
        for tensor, saved in pairs:
            tensor.copy_(saved)
        self.steps = state_dict["steps"]
        self._remember()

    def _inner_loaded(self) -> None:
        super()._inner_loaded()
        rounds: GradientRounds | None = vars(self).get("_rounds")
        if rounds is not None:  # the constructor has ended
            rounds.equal_state.is_due = True

    def stats(self) -> Stats:
        """Return the counts: rounds of averaging (as exchanges), time waited, bytes."""
        return self._rounds.recorder.snapshot()

    def finish(self, *, timeout_s: float | None = None) -> None:
        """End the run; it does not wait, because all ranks have the same parameters.

        Args:
            timeout_s: not used; other optimizers wait this long.

        Raises:
            ConfigError: it was closed before, or timeout_s is invalid; nothing was changed.
        """
        self._demand_finishable(timeout_s)
        self.eval()
        self.close()

    def close(self, *, exchange: bool = True) -> None:  # noqa: ARG002 - as other optimizers
        """Leave the other ranks; a rank that still steps gets StepMismatchError. Idempotent."""
        if not self._is_closed:
            self._leave(in_order=True)

    def _leave(self, *, in_order: bool) -> None:
        self._rounds.close(in_order=in_order)
        self._mark_closed()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error the other ranks get WorkerLostError."""
        if not self._is_closed:
            self._leave(in_order=error is None)
