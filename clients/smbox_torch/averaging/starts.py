"""The starts of workers that meet at a memory box.

A launcher may restart a worker alone. Then the others fail too, and all begin again. So only
workers that know the same starts of all workers meet: each gives a checksum of them, its token.
A worker of an earlier start, or one that was killed, does not know the present ones. Once all
have met, the token stays the same.

A worker that was stopped and replaced may write its row late. Its successor, whose generation
is larger, writes its own row again; the others ignore the late row.

    NAME.came    i64[workers, 3]: id of the start of each worker, 0 without a launcher; how
                 often it came since that start; its generation, see ``Team``
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from smbox.errors import LeaseLostError
from smbox.member_record import hash_of
from smbox_torch.boxes import Array, RegionLike
from smbox_torch.workers.team import Team
from smbox_torch.world import World, is_launched

__all__ = ["COLUMNS", "Found", "Starts"]

COLUMNS: Final = 3


class Found(NamedTuple):
    """What the starts tell about the other workers; ranks in the team.

    Attributes:
        again: they were started again, and this worker was not.
        earlier: this worker was started again, and they were not yet.
        equal: they were started as often as this worker, which has not met them yet.
    """

    again: Sequence[int] = ()
    earlier: Sequence[int] = ()
    equal: Sequence[int] = ()


class Starts:
    """The starts of all workers, as one of them sees them; this object counts one.

    Args:
        came: the region.
        team: the workers.
    """

    def __init__(self, came: RegionLike, team: Team) -> None:
        self._came = came
        self._team = team
        self._seen: Array | None = None
        self._agreed: Array | None = None
        self._start_id = _start_id()
        start_id, times, generation = self._mine.get()[0].tolist()
        self._times = times + 1 if start_id == self._start_id else 1
        generation = generation + 1 if team.generation is None else team.generation
        self._row = np.array([[self._start_id, self._times, generation]], np.int64)
        self._mine.put(self._row)

    @property
    def _mine(self) -> RegionLike:
        return self._came[self._team.rank : self._team.rank + 1]

    def _read(self) -> Array:
        """Return the starts of all, after replacing a late row of an earlier start.

        Raises:
            LeaseLostError: this worker has lost its rank.
        """
        self._team.check()  # a late row of this worker would hide its successor's
        came, rank = self._came.get(), self._team.rank
        found = came[rank : rank + 1]
        self._demand_latest(found)
        if (found != self._row).any():
            self._mine.put(self._row)
            found[:] = self._row
        return came

    def check(self) -> None:
        """Raise LeaseLostError if a later worker has this worker's rank; it may have left."""
        self._demand_latest(self._mine.get())

    def _demand_latest(self, found: Array) -> None:
        if _are_later(found, self._row)[0]:
            rank = self._team.rank
            raise LeaseLostError(
                f"another process has taken rank {rank} of the workers that meet: this one was"
                " stopped for longer than its lease; end it",
                rank=rank,
            )

    def token(self) -> int:
        """Return the checksum of the starts agreed on, or of the present ones.

        Raises:
            LeaseLostError: this worker has lost its rank; only before they have agreed.
        """
        if self._agreed is None:
            self._seen = self._read()
            return zlib.crc32(self._seen.tobytes())
        return zlib.crc32(self._agreed.tobytes())

    def agree(self) -> None:
        """From now on meet only the workers of the last token, by which all have met."""
        self._agreed = self._seen

    def find(self) -> Found:
        """Return what is known about the others; until they agree only with a launcher.

        Raises:
            LeaseLostError: this worker has lost its rank.
        """
        came = self._read()
        is_known = (came[:, 0] == self._start_id) & bool(self._start_id)
        times = np.where(is_known, came[:, 1], 0)
        again = times > self._times
        if self._agreed is not None:
            again |= _are_later(came, self._agreed)
            return Found(np.flatnonzero(again).tolist())
        earlier = (times > 0) & (times < self._times)
        sorts = (again, earlier, times == self._times)
        return Found(*(np.flatnonzero(each).tolist() for each in sorts))


def _are_later(rows: Array, known: Array) -> Array:
    """Return for each row whether a later start wrote it than the known one of its rank."""
    (_, times, generations), (_, known_times, known_generations) = rows.T, known.T
    is_same = generations == known_generations  # the same process, which came again
    later: Array = (generations > known_generations) | (is_same & (times > known_times))
    return later


def _start_id() -> int:
    """Return an id that the workers of one start by a launcher share; 0 without a launcher."""
    is_shared = is_launched(os.environ)
    return hash_of(World.from_env(os.environ).start_id) if is_shared else 0
