"""The starts of workers that meet at a memory box.

A launcher may restart a worker alone. Then the others fail too, and all begin again. So only
workers that know the same starts of all workers meet: each gives a checksum of them, its token.
A worker of an earlier start, or one that was killed, does not know the present ones. Once all
have met, the token stays the same.

    NAME.came    i64[workers, 2]: id of the start of each worker; how often it came since that
                 start. Without a launcher: 0, and a random number
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from smbox.member_record import hash_of
from smbox_torch.boxes import Array, RegionLike
from smbox_torch.world import World, is_launched

__all__ = ["COLUMNS", "Found", "Starts"]

COLUMNS: Final = 2
RANDOM_BITS: Final = 62


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
        rank: rank of this worker in the team.
    """

    def __init__(self, came: RegionLike, rank: int) -> None:
        self._came = came
        self._seen: Array | None = None
        self._agreed: Array | None = None
        self._start_id = _start_id()
        mine = came[rank : rank + 1]
        start_id, times = mine.get()[0].tolist()
        self._times = times + 1 if start_id == self._start_id else 1
        count = self._times if self._start_id else secrets.randbits(RANDOM_BITS)
        mine.put(np.array([[self._start_id, count]], np.int64))

    def token(self) -> int:
        """Return the checksum of the starts agreed on, or of the present ones."""
        if self._agreed is None:
            self._seen = self._came.get()
            return zlib.crc32(self._seen.tobytes())
        return zlib.crc32(self._agreed.tobytes())

    def agree(self) -> None:
        """From now on meet only the workers of the last token, by which all have met."""
        self._agreed = self._seen

    def find(self) -> Found:
        """Return what is known about the others; until they agree only with a launcher."""
        came = self._came.get()
        is_known = (came[:, 0] == self._start_id) & bool(self._start_id)
        times = np.where(is_known, came[:, 1], 0)
        again = times > self._times
        if self._agreed is not None:
            again |= (came != self._agreed).any(axis=1)
            return Found(np.flatnonzero(again).tolist())
        earlier = (times > 0) & (times < self._times)
        sorts = (again, earlier, times == self._times)
        return Found(*(np.flatnonzero(each).tolist() for each in sorts))


def _start_id() -> int:
    """Return an id that the workers of one start by a launcher share; 0 without a launcher."""
    is_shared = is_launched(os.environ)
    return hash_of(World.from_env(os.environ).start_id) if is_shared else 0
