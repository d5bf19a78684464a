"""A common end of a run for asynchronous workers, whose iteration counts differ.

ShmCaffe (ICDCS 2018) has three rules: all workers stop when the *master* reaches the target
number of iterations, when the *fastest* worker does, or when the *mean* over all workers does.
Workers store their counts in the memory, and read the counts that the rule needs.

    NAME.stop.iterations  region: iterations of each rank
    NAME.stop.ended       counter: the launch, once one of its workers finds the rule satisfied;
                          1 if the launch is unknown

Dead workers and workers that left do not count: the master is the lowest rank that is present,
and the mean is over the present workers. The first worker that finds the rule satisfied decides
for all. A later launch of the same name does not end with an earlier one.
"""

from __future__ import annotations

import weakref
from typing import Literal, get_args

import numpy as np

from smbox.errors import ConfigError
from smbox.head import check_prefix
from smbox.roster import CAPACITY
from smbox_torch.boxes import BoxLike, check_box
from smbox_torch.checks import whole
from smbox_torch.workers.joining import LEASE_S, Workers, team_of
from smbox_torch.workers.launch import launch_of

__all__ = ["Rule", "Stopping"]

Rule = Literal["master", "fastest", "mean"]


class Stopping:
    """One worker's part in the decision.

    Args:
        box: the memory.
        name: name of the run.
        rule: "master", "fastest" or "mean".
        iterations: the target.
        rank: rank of this worker; None: the launcher's rank, else the lowest free rank.
        workers: number of workers, or a member from ``smbox.join``; None: the number from the
            launcher (``smbox run``, torchrun).
        every: iterations between two accesses to the memory.
        lease_s: seconds without a renewal after which this worker counts as dead.

    Attributes:
        iterations: iterations of this worker so far; it begins at the count of a dead
            predecessor with the same rank.

    Raises:
        TypeError, LimitError: the name is not valid; no region was created.
        ConfigError: the rule is unknown, ``iterations`` is below 1, or the number of workers
            is unknown; this worker did not join.
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
            raise ConfigError(f"rule must be one of {get_args(Rule)}", rule=rule)
        iterations, every = whole("iterations", iterations), whole("every", every)
        self._rule = rule
        self._target = iterations
        self._every = every
        self._team = team_of(box, f"{name}.stop", workers, rank=rank, lease_s=lease_s)
        weakref.finalize(self, self._team.leave).atexit = False
        self.iterations = self._team.begins_at
        self._all = box.create(
            f"{name}.stop.iterations", shape=CAPACITY, dtype="int64", init=0, exist_ok=True
        )
        own = self._team.rank
        self._mine = self._all[own : own + 1]
        self._ended = box.counter(f"{name}.stop.ended")
        self._launch = launch_of()
        self._publish()

    def step(self) -> bool:
        """Count one iteration of this worker; return True if the run ends now.

        Raises:
            LeaseLostError: another process has this worker's rank.
        """
        self.iterations += 1
        if self.iterations % self._every and self.iterations != self._target:
            return False
        self._publish()
        self._team.tell(self.iterations)
        ended = self._ended.value
        if ended == self._launch:
            return True
        if not self._is_met():
            return False
        self._ended.compare_and_swap(ended, self._launch)
        return True

    def _publish(self) -> None:
        self._mine.put(np.array([self.iterations], np.int64))

    def _is_met(self) -> bool:
        if self._rule == "fastest":
            return self.iterations >= self._target
        ranks = self._team.present()
        if not ranks:
            return False
        iterations = self._team.without_earlier(self._all.get())[ranks]
        if self._rule == "master":
            return int(iterations[0]) >= self._target
        return int(iterations.sum()) >= self._target * len(ranks)

    def close(self) -> None:
        """Stop counting; the others decide without this worker."""
        self._team.leave()
