"""An optimizer that belongs to a run: it joins, tells how far it is, and ends together.

What a step and an exchange are, subclasses say.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch

from smbox import Member
from smbox_torch.optimizer.wrapped import WrappedOptimizer
from smbox_torch.workers.team import JoinedTeam, Team

__all__ = ["JoinedOptimizer"]


class JoinedOptimizer(WrappedOptimizer):
    """Base of optimizers whose workers know each other.

    Attributes:
        team: who works in this run.
        rank: of this worker.
        workers: how many the run was started with.
        steps: local steps so far; a worker that takes a dead one's rank begins at its steps.
        shares_counts: whether a model's integer buffers are shared, see ``BatchCounts``.
    """

    shares_counts = True
    team: Team
    steps: int

    def _agreed(self) -> dict[str, object]:
        """Return the settings that all workers of a run give alike, see ``claim``."""
        return {}

    def _join(self, team: Team) -> None:
        """Belong to a run, until nobody uses the optimizer any more at the latest."""
        self.team = team
        team.count()
        weakref.finalize(self, self.team.leave).atexit = False
        self.rank = self.team.rank
        self.workers = self.team.size
        self.steps = self.team.begins_at
        self._shared_steps = self.steps

    @contextmanager
    def _leaving_on_error(self) -> Iterator[None]:
        """Leave the run if what is inside, a part of the construction, fails."""
        try:
            yield
        except BaseException:
            self.team.leave()
            raise

    @property
    def member(self) -> Member | None:
        """This worker's place in the run; None on a memory that is none of smbox's."""
        return self.team.member if isinstance(self.team, JoinedTeam) else None

    def _note_shared(self, steps: int | None = None) -> None:
        """Tell that the memory has what so many steps of this worker did; None: all so far."""
        self._shared_steps = self.steps if steps is None else steps
        self.team.tell(self._shared_steps)

    # ------------------------------------------------------------------ the end

    def finish(self, *, timeout_s: float | None = None) -> None:
        """End the run together with the others; the model then holds the center.

        Exchanges what was not exchanged yet, waits until all workers that are alive have come
        here (who died or left is not waited for), copies the center into this worker's own
        model, and closes.

        Args:
            timeout_s: longest wait for the others; None: as long as one of them lives that has
                not come, see ``Member.finish``.

        Raises:
            RequestTimeoutError: somebody did not come; the error names who. The center has this
                worker's steps, its model is its own, and a step raises ConfigError: call again,
                or close.
            ConfigError: it was closed before; nothing was changed.
        """
        self._demand_finishable()
        self.train()
        with torch.no_grad():
            self._share_rest()
            self._end_once()
            self.team.finish(timeout_s)
            self._take_center()
        self.close(exchange=False)

    def close(self, *, exchange: bool = True) -> None:
        """Leave the run: nobody waits for this worker any more. Idempotent.

        Args:
            exchange: first share with the center what was not shared yet.

        Raises:
            SmboxError: the last exchange failed; the worker has left all the same.
        """
        if self._is_closed:
            return
        self.train()
        try:
            if exchange:
                with torch.no_grad():
                    self._share_rest()
        finally:
            self._is_closed = True
            try:
                with torch.no_grad():
                    self._end_once()
            finally:
                self.team.leave()

    def _share_rest(self) -> None:
        """Do a last exchange if steps were done since the one before."""
        if self.steps > self._shared_steps:
            self._share()

    def _share(self) -> None:
        """Do the last exchange, whatever the period; default: every step has shared all."""

    def _end_once(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._end()

    def _end(self) -> None:
        """Complete what is under way, so that x and center agree; give back threads."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error what was not exchanged yet stays out of the center."""
        self.close(exchange=error is None)
