"""Where a member stands among the meetings of its run: one number, which only grows. Pure.

    2 n - 1     it has come to meeting n, and waits for the others
    2 n         meeting n was held

Every ``ENDS``-th meeting is an end. A member goes to the next end at once, whatever meetings
lie before it: those wait for it no more, and an end waits for all.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]

ENDS: Final = 1 << 32
"""Meetings from one end to the next; a member's word has room for 127 ends."""


def following(word: int) -> int:
    """Return the meeting that is next; one that a member came to and gave up is next again."""
    return word // 2 + 1


def end(word: int) -> int:
    """Return the end that is next."""
    return -(-following(word) // ENDS) * ENDS


def has_come(words: I64, number: int) -> NDArray[np.bool_]:
    """Tell who has come to a meeting, or to a later one."""
    return words >= 2 * number - 1


def is_at_end(words: I64) -> NDArray[np.bool_]:
    """Tell who waits at an end for the others."""
    found: NDArray[np.bool_] = words % (2 * ENDS) == 2 * ENDS - 1
    return found


def first_word(others: I64) -> int:
    """Return the word of a member that joins: after all meetings that these have held.

    It has still to come to an end at which others wait.
    """
    held = np.where(is_at_end(others), others + 1 - 2 * ENDS, others // 2 * 2)
    return int(held.max(initial=0))
