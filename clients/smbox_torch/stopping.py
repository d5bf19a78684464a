"""Stopping together: when asynchronous workers, which are never equally far, end their run.

ShmCaffe (ICDCS 2018) has three rules: all stop when the *master* has done its iterations, when
the *fastest* worker has, or when the *mean* over all workers reaches the target. Workers
count in the memory; each reads what its rule needs after its own iterations.

    master   counter NAME.stop.master: iterations of rank 0
    fastest  counter NAME.stop.done:   how many workers have reached the target
    mean     counter NAME.stop.all:    iterations of all workers together
"""

from __future__ import annotations

import os
from typing import Literal, get_args

from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike
from smbox_torch.elastic import default_workers
from smbox_torch.world import World

__all__ = ["Rule", "Stopping"]

Rule = Literal["master", "fastest", "mean"]


class Stopping:
    """One worker's part in the decision.

    Args:
        box: the memory.
        name: of the run.
        rule: "master", "fastest" or "mean".
        iterations: the target.
        rank: of this worker; None: as the launcher tells, else 0.
        workers: how many there are; None: as the launcher tells, else 1.
        every: iterations between two looks at the memory.

    Attributes:
        iterations: of this worker so far.

    Raises:
        ConfigError: an unknown rule, or no iterations to do.
    """

    def __init__(
        self,
        box: BoxLike,
        name: str,
        rule: Rule,
        iterations: int,
        *,
        rank: int | None = None,
        workers: int | None = None,
        every: int = 1,
    ) -> None:
        if rule not in get_args(Rule) or iterations < 1 or every < 1:
            raise ConfigError(
                f"a rule of {get_args(Rule)}, with iterations and every from 1", rule=rule
            )
        self.iterations = 0
        self._rule = rule
        self._target = iterations
        self._every = every
        self._workers = default_workers(workers)
        self._is_master = (World.from_env(os.environ).rank if rank is None else rank) == 0
        which = {"master": "master", "fastest": "done", "mean": "all"}[rule]
        self._counter = box.counter(f"{name}.stop.{which}")
        self._told = 0

    def step(self) -> bool:
        """Count one iteration of this worker; tell whether the run ends now."""
        self.iterations += 1
        if self.iterations % self._every and self.iterations != self._target:
            return False
        self._tell()
        return self._counter.value >= self._limit()

    def _tell(self) -> None:
        """Add to the counter what the rule counts."""
        if self._rule == "fastest":
            if self.iterations == self._target:
                self._counter.add(1)
        elif self._rule == "mean" or self._is_master:
            self._counter.add(self.iterations - self._told)
            self._told = self.iterations

    def _limit(self) -> int:
        """Return the value of the counter at which all stop."""
        if self._rule == "fastest":
            return 1
        return self._target * (self._workers if self._rule == "mean" else 1)
