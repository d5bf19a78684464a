"""The clocks of all workers in one region, and the wait until no worker is too far behind."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, RequestTimeoutError
from smbox.roster import CAPACITY
from smbox_torch.boxes import BoxLike
from smbox_torch.workers.team import Team

__all__ = ["Clocks"]


def left(clock: int) -> int:
    """Return the word of a worker that left at a clock, or the clock of such a word.

    No worker waits for a negative word.
    """
    return -1 - clock


class Clocks:
    """The clocks of all workers; this worker advances one of them.

    Clocks of dead workers are ignored, see docs/membership.md.

    Args:
        box: the memory.
        name: name of the region, ``i64[CAPACITY]``; negative: ``left(clock)``.
        team: the workers. If the others wait for this worker from their start on, its clock
            begins at 0, or at the predecessor's if it continues the predecessor's steps.
            Otherwise it continues from the last clock of its rank, and if the earlier
            worker of this rank left, or this worker joined a running run, at least from the
            slowest clock of the other workers.
    """

    def __init__(self, box: BoxLike, name: str, team: Team) -> None:
        self._team = team
        self._has_left = False
        self._pid = os.getpid()
        self._all = box.create(name, shape=CAPACITY, dtype="int64", init=0, exist_ok=True)
        self._mine = self._all[team.rank : team.rank + 1]
        word = self.mine
        if team.is_first:
            self._set(max(word, left(word)) if team.begins_at else 0)
        elif team.is_late or word < 0:
            others = [clock for rank, clock in self.present().items() if rank != team.rank]
            self._set(max(word, min(others, default=0)))

    @property
    def mine(self) -> int:
        """This worker's clock."""
        return int(self._mine.get()[0])

    def read(self) -> NDArray[np.int64]:
        """Return the current clocks of all ranks, ``i64[CAPACITY]``."""
        return self._all.get()

    def present(self) -> dict[int, int]:
        """Return the clocks of the present workers, which neither died nor left, by rank.

        A worker that never joined has clock 0.
        """
        ranks = self._team.present()
        never_came = self._team.never_came()  # first: one of them may join meanwhile
        clocks = self.read()
        clocks[never_came] = 0
        return {rank: int(clocks[rank]) for rank in ranks if clocks[rank] >= 0}

    def slowest(self) -> int:
        """Return the lowest clock of the present workers; this worker's if it is alone."""
        return min(self.present().values(), default=self.mine)

    def tick(self) -> int:
        """Advance this worker's clock; return it.

        Raises:
            ConfigError: this worker has left.
        """
        if self._has_left:
            raise ConfigError(
                "this worker has left: its clock cannot advance", rank=self._team.rank
            )
        return int(self._mine.fetch_and_op(np.ones(1, np.int64), "sum")[0]) + 1

    def leave(self) -> None:
        """Mark this worker as left, so that no worker waits for it; a forked child does not."""
        self._has_left = True
        if os.getpid() == self._pid and (clock := self.mine) >= 0:
            self._set(left(clock))

    def wait(self, at_least: int, timeout_s: float) -> int:
        """Wait until no clock is below ``at_least``; return the lowest clock.

        Raises:
            RequestTimeoutError: a worker did not reach it, or never joined; the error names its
                rank. Nothing changed.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            version = self._all.version
            clocks = self.present()
            behind = [rank for rank, clock in clocks.items() if clock < at_least]
            if not behind:
                return min(clocks.values(), default=at_least)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0.0:
                rank = min(behind, key=clocks.__getitem__)
                found = self._team.describe(rank)
                raise RequestTimeoutError(
                    f"rank {rank} never came: start as many workers as workers= says"
                    if found.get("pid", ...) is None
                    else f"rank {rank} stays behind: is it alive?",
                    **found,
                    clock=clocks[rank],
                    awaited=at_least,
                    timeout_s=timeout_s,
                )
            with suppress(RequestTimeoutError):
                self._all.wait(version + 1, timeout_s=min(left_s, self._team.poll_s))

    def _set(self, clock: int) -> None:
        self._mine.put(np.array([clock], np.int64))
