"""An observer's measure of how long others' words stood still. Pure: time is an argument."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class Watch:
    """An observer's measure of how long words have stood still.

    Args:
        count: how many words there are.
    """

    def __init__(self, count: int) -> None:
        self._words = np.zeros(count, np.int64)
        self._since_s = np.zeros(count)
        self._looked_s = -math.inf

    def forget(self) -> None:
        """Begin all measures anew at the next look: what happened since the last is unknown."""
        self._looked_s = -math.inf

    def look(
        self, words: I64, lease_s: NDArray[np.float64], *, began_s: float, ended_s: float
    ) -> NDArray[np.bool_]:
        """Compare with the look before; tell which words stood still for their whole lease.

        Two looks that lie further apart than the lease begin the measure anew, so that an
        observer that was stopped itself does not take the others for dead.

        Args:
            words: as read just now, ``[count]``.
            lease_s: of each, in seconds, ``[count]``.
            began_s: the observer's monotonic time before the read.
            ended_s: and after it.
        """
        is_new = (words != self._words) | (began_s - self._looked_s > lease_s)
        self._since_s[is_new] = ended_s
        self._words[:] = words
        self._looked_s = ended_s
        is_still: NDArray[np.bool_] = began_s - self._since_s > lease_s
        return is_still
