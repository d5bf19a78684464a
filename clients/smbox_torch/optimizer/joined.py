"""JoinedOptimizer: an optimizer that joins a run, reports its progress, and ends the run.

Subclasses implement the step and the exchange.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec

import torch

from smbox import Member
from smbox_torch.optimizer.wrapped import WrappedOptimizer
from smbox_torch.workers.team import JoinedTeam, Team

__all__ = ["JoinedOptimizer"]

P = ParamSpec("P")


def _leaving_on_error(construct: Callable[P, None]) -> Callable[P, None]:
    """Let a constructor that fails leave the run that it has joined."""

    @wraps(construct)
    def __init__(*args: P.args, **kwargs: P.kwargs) -> None:  # noqa: N807 - it is one
        try:
            construct(*args, **kwargs)
        except BaseException:
            team: Team | None = vars(args[0]).get("team")
            if team is not None:
                team.leave()
            raise

    return __init__


class JoinedOptimizer(WrappedOptimizer):
    """Base class of optimizers that are members of a run.

    Attributes:
        team: the workers of this run.
        rank: rank of this worker.
        workers: number of workers with which the run was started.
        steps: number of local steps; a worker that takes over the rank of a dead worker starts
            at that worker's number.
        shares_counts: whether the model's batch counts are shared; see ``BatchCounts``.
    """

    shares_counts = True
    team: Team
    steps: int
    _is_complete = False
    """Whether the end that ``finish`` and ``close`` have in common was reached."""

    def __init_subclass__(cls) -> None:
        """Wrap the constructor that a subclass defines, so that each one leaves if it fails."""
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = _leaving_on_error(cls.__init__)  # type: ignore[method-assign]

    def _agreed(self) -> dict[str, object]:
        """Return the settings that must be equal on all workers of a run; see ``claim``."""
        return {}

    def _join(self) -> None:
        """Begin in ``team``; the worker leaves it at the latest when this object is collected.

        The caller sets ``team`` as soon as it has joined: a constructor that fails leaves it.
        """
        self.team.count()
        weakref.finalize(self, self.team.leave).atexit = False
        self.rank = self.team.rank
        self.workers = self.team.size
        self.steps = self.team.begins_at
        self._shared_steps = self.steps

    @property
    def member(self) -> Member | None:
        """This worker's membership; None if the memory is not an smbox ``Box``."""
        return self.team.member if isinstance(self.team, JoinedTeam) else None

    def _note_shared(self, steps: int | None = None) -> None:
        """Report that the memory has this many steps of this worker; None: all so far."""
        self._shared_steps = self.steps if steps is None else steps
        self.team.tell(self._shared_steps)

    # ------------------------------------------------------------------ the end

    def finish(self, *, timeout_s: float | None = None) -> None:
        """End the run together with the other workers; the model then holds the center.

        The call exchanges the steps that were not exchanged yet, waits until all live workers
        have called ``finish`` (it does not wait for workers that died or left), copies the
        center into this worker's own model, and closes.

        Args:
            timeout_s: longest wait for the others, in seconds; None: as long as a worker that
                has not called ``finish`` is alive, see ``Member.finish``.

        Raises:
            RequestTimeoutError: a worker did not call ``finish``; the error names it. The
                center has this worker's steps, the model has the worker's own values, and a
                step raises ConfigError. Call ``finish`` again, or close.
            ConfigError: it was closed before, timeout_s is invalid, or the model was moved or
                converted; nothing was changed.
        """
        self._demand_finishable(timeout_s)
        if self._own is not None:
            self._own.check_places()  # a model elsewhere would not get the center
        self.train()
        with torch.no_grad():
            self._share_rest()
            self._end_once()
            self.team.finish(timeout_s)
            if self._own is not None:
                self._set_inner("eval")  # else a later eval would change the center
            self._take_center()
            self._forget_unshared()  # a state that is saved now has nothing to share
        self._own = None
        self.close(exchange=False)

    def close(self, *, exchange: bool = True) -> None:
        """Leave the run; the other workers do not wait for this one. Idempotent.

        After an interrupt, call it again: it then completes what is left of the end.

        Args:
            exchange: first exchange the steps that were not exchanged yet.

        Raises:
            SmboxError: the last exchange failed; the worker has left the run nevertheless.
        """
        is_first = not self._is_closed
        if is_first and self._own is not None and self._own.are_saved:
            self.train()
        try:
            if exchange and is_first:
                with torch.no_grad():
                    self._share_rest()
        finally:
            self._mark_closed()
            try:
                with torch.no_grad():
                    self._end_once()
            except Exception:
                self._is_complete = True  # a further close has nothing to repeat
                raise
            finally:
                self.team.leave()

    def _share_rest(self) -> None:
        """Do a last exchange if there are steps since the previous one."""
        if self.steps > self._shared_steps:
            self._share()

    def _share(self) -> None:
        """Do the last exchange, regardless of the period; default: nothing is left to share."""

    def _forget_unshared(self) -> None:
        """Discard unshared updates and start at x: others share them, or have done it."""

    def _end_once(self) -> None:
        self._has_ended = True
        if not self._is_complete:
            self._end()
            self._is_complete = True

    def _end(self) -> None:
        """Complete the exchange in progress and stop threads; called again if interrupted."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error, steps that were not exchanged do not reach the center."""
        self.close(exchange=error is None)
