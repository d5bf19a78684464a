"""Clocks of workers, side by side in one region, and waiting until none is too far behind."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, RequestTimeoutError
from smbox_torch.boxes import BoxLike

__all__ = ["Clocks"]

LEFT = np.iinfo(np.int64).max
"""Clock of a worker that left: nobody waits for it."""


class Clocks:
    """The clocks of all workers, ``i64[workers]``; this worker advances one of them.

    Args:
        box: the memory.
        name: of the region.
        rank: of this worker; its clock goes on where it stopped, or, after it left, where the
            slowest of the others is.
        workers: how many there are; those that have not come yet stand at zero.

    Raises:
        ConfigError: rank is not below workers; nothing was created.
    """

    def __init__(self, box: BoxLike, name: str, rank: int, workers: int) -> None:
        if not 0 <= rank < workers:
            raise ConfigError("a rank is at least 0 and below workers", rank=rank)
        self.rank = rank
        self._has_left = False
        self._all = box.create(name, shape=workers, dtype="int64", init=0, exist_ok=True)
        self._mine = self._all[rank : rank + 1]
        if self.mine == LEFT:
            present = [clock for clock in self.read() if clock != LEFT]
            self._set(min(present, default=0))

    @property
    def mine(self) -> int:
        """This worker's clock."""
        return int(self._mine.get()[0])

    def read(self) -> NDArray[np.int64]:
        """Return all clocks as they are now."""
        return self._all.get()

    def tick(self) -> int:
        """Advance this worker's clock; return it.

        Raises:
            ConfigError: this worker has left.
        """
        if self._has_left:
            raise ConfigError("this worker has left: its clock stands still", rank=self.rank)
        self._mine.accumulate(np.ones(1, np.int64))
        return self.mine

    def leave(self) -> None:
        """Let nobody wait for this worker any more."""
        self._has_left = True
        self._set(LEFT)

    def wait(self, at_least: int, timeout_s: float) -> int:
        """Wait until no clock is below ``at_least``; return the slowest.

        Raises:
            RequestTimeoutError: one stayed behind, which the error names; nothing changed.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            version = self._all.version
            clocks = self.read()
            if clocks.min() >= at_least:
                return int(clocks.min())
            self._wait(version + 1, deadline_s, clocks, at_least)

    def _wait(
        self, version: int, deadline_s: float, clocks: NDArray[np.int64], at_least: int
    ) -> None:
        try:
            self._all.wait(version, timeout_s=max(0.0, deadline_s - time.monotonic()))
        except RequestTimeoutError as late:
            slowest = int(clocks.argmin())
            raise RequestTimeoutError(
                "a worker stays behind: is it alive?",
                rank=slowest,
                clock=int(clocks[slowest]),
                awaited=at_least,
                **late.facts,
            ) from late

    def _set(self, clock: int) -> None:
        self._mine.put(np.array([clock], np.int64))
