"""A common end of a run for asynchronous workers, whose iteration counts differ.

ShmCaffe (ICDCS 2018) has three rules: all stop when the *master* has done its iterations, when
the *fastest* worker has, or when the *mean* over all workers reaches the target. Workers
count in the memory; each reads what its rule needs after its own iterations.

    NAME.stop.iterations  region: iterations of each rank
    NAME.stop.ended       counter: 1 as soon as one worker found its rule met

Workers that died or left count no more: the master is the lowest rank that is there, and the
mean is over those who are. Who finds the rule met decides for all.
"""

from __future__ import annotations

import weakref
from typing import Literal, get_args

import numpy as np

from smbox.errors import ConfigError
from smbox.head import check_prefix
from smbox_torch.boxes import BoxLike, check_box
from smbox_torch.checks import whole
from smbox_torch.workers.clocks import RANKS_MAX
from smbox_torch.workers.joining import LEASE_S, Workers, team_of

__all__ = ["Rule", "Stopping"]

Rule = Literal["master", "fastest", "mean"]


class Stopping:
    """One worker's part in the decision.

    Args:
        box: the memory.
        name: of the run.
        rule: "master", "fastest" or "mean".
        iterations: the target.
        rank: of this worker; None: the launcher's, else the lowest that is free.
        workers: how many there are, or a member from ``smbox.join``; None: as the launcher
            (``smbox run``, torchrun) says.
        every: iterations between two looks at the memory.
        lease_s: seconds without a sign of life after which this worker counts as dead.

    Attributes:
        iterations: of this worker so far; of a dead predecessor at its rank, where it began.

    Raises:
        TypeError, LimitError: no run can have this name; nothing was made.
        ConfigError: an unknown rule, no iterations to do, or nobody says how many workers
            there are; this worker did not join.
        RankTakenError: a living process has this rank.
    """

    def __init__(
        self,
        box: BoxLike,
        name: str,
        rule: Rule,
        iterations: int,
        *,
        rank: int | None = None,
        workers: Workers = None,
        every: int = 1,
        lease_s: float = LEASE_S,
    ) -> None:
        check_box(box)
        check_prefix(name)
        if rule not in get_args(Rule):
            raise ConfigError(f"rule is one of {get_args(Rule)}", rule=rule)
        iterations, every = whole("iterations", iterations), whole("every", every)
        self._rule = rule
        self._target = iterations
        self._every = every
        self._team = team_of(box, f"{name}.stop", workers, rank=rank, lease_s=lease_s)
        weakref.finalize(self, self._team.leave).atexit = False
        self.iterations = self._team.begins_at
        self._all = box.create(
            f"{name}.stop.iterations", shape=RANKS_MAX, dtype="int64", init=0, exist_ok=True
        )
        own = self._team.rank
        self._mine = self._all[own : own + 1]
        self._ended = box.counter(f"{name}.stop.ended")

    def step(self) -> bool:
        """Count one iteration of this worker; return whether the run ends now.

        Raises:
            LeaseLostError: another process has this worker's rank.
        """
        self.iterations += 1
        if self.iterations % self._every and self.iterations != self._target:
            return False
        self._mine.put(np.array([self.iterations], np.int64))
        self._team.tell(self.iterations)
        if self._ended.value:
            return True
        if not self._is_met():
            return False
        self._ended.compare_and_swap(0, 1)
        return True

    def _is_met(self) -> bool:
        if self._rule == "fastest":
            return self.iterations >= self._target
        ranks = self._team.present()
        if not ranks:
            return False
        iterations = self._all.get()[ranks]
        if self._rule == "master":
            return int(iterations[0]) >= self._target
        return int(iterations.sum()) >= self._target * len(ranks)

    def close(self) -> None:
        """Count no more: the others decide without this worker."""
        self._team.leave()
