"""Meetings of all workers: each writes its row of a region, and waits for those of the others.

    NAME.met.WHAT    i64[workers, 2]: the token of the workers that shall meet, see ``Starts``;
                     how often the worker has come

Writing the same row again changes nothing. So a request that the memory node did not answer is
repeated, and a wait that timed out has no effect. A row that an earlier start of the worker
writes late is replaced.
"""

from __future__ import annotations

import numpy as np

from smbox.errors import RequestTimeoutError
from smbox_torch.boxes import RegionLike

__all__ = ["COLUMNS", "Meeting"]

COLUMNS = 2


class Meeting:
    """One worker's part of all meetings of one name.

    Args:
        region: as above.
        rank: rank of this worker in the team.
    """

    def __init__(self, region: RegionLike, rank: int) -> None:
        self._region, self._rank = region, rank
        self._met = 0  # number of complete meetings
        self._found: list[int] = []  # in the own row, at the last look
        self._version = 0  # of the region, before the last look

    def come(self, token: int) -> list[int]:
        """Come to the next meeting, or look again; return the ranks that have not come yet.

        With none the meeting is complete.

        Raises:
            RequestTimeoutError: the memory node did not answer; call this again.
        """
        number = self._met + 1
        if self._found != [token, number]:
            own = self._region[self._rank : self._rank + 1]
            own.put(np.array([[token, number]], np.int64))
        rows = self._region.get()
        self._found = rows[self._rank].tolist()
        tokens, numbers = rows.T
        missing: list[int] = np.flatnonzero((tokens != token) | (numbers < number)).tolist()
        if not missing:
            self._met = number
        return missing

    def last(self) -> int:
        """Return the token of the last workers that have all come; 0 if some never did.

        0 also while workers of a later start have come, and others have not.
        """
        first, *others = self._region.get()[:, 0].tolist()
        return 0 if any(token != first for token in others) else int(first)

    def wait(self, missing: int, timeout_s: float) -> bool:
        """Wait until as many rows may have come as were missing; False: the wait timed out."""
        try:
            self._version = self._region.wait(self._version + missing, timeout_s=timeout_s)
        except RequestTimeoutError:
            return False
        return True
