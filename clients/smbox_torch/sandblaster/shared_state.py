"""The state that a coordinator and its workers share: tickets, and the board that all read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["HEAD", "POSITION", "ROUND_SHIFT", "RunState", "Ticket", "fetch_add"]

ROUND_SHIFT: Final = 32
POSITION: Final = (1 << ROUND_SHIFT) - 1
HEAD: Final = 3
"""Number of words of a board before those of portions and workers."""

Words = NDArray[np.int64]


class Ticket(NamedTuple):
    """A portion of a round that a worker computes."""

    round: int
    portion: int

    @property
    def label(self) -> int:
        """The ticket as one number, positive from round 1 on."""
        return self.round << ROUND_SHIFT | self.portion

    @classmethod
    def of(cls, label: int) -> Self:
        """Return the ticket with a label."""
        return cls(label >> ROUND_SHIFT, label & POSITION)


@dataclass(slots=True)
class RunState:
    """The state that the coordinator publishes to all workers.

    Args:
        words: ``i64[3 + P + W]``: see the properties.
        portions: P.
    """

    words: Words
    portions: int

    @property
    def round(self) -> int:
        """The current round, from 1; 0 before the first round."""
        return int(self.words[0])

    @property
    def first(self) -> int:
        """The position of the round's first ticket."""
        return int(self.words[1])

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has ended the run."""
        return bool(self.words[2])

    @property
    def done(self) -> Words:
        """``[P]``: the round in which each portion was added last."""
        return self.words[HEAD : HEAD + self.portions]

    @property
    def taken(self) -> Words:
        """``[W]``: the label of each worker's last report that was read."""
        return self.words[HEAD + self.portions :]

    def missing(self) -> list[int]:
        """Return the portions that have not been added in this round."""
        found: list[int] = np.flatnonzero(self.done != self.round).tolist()
        return found


def fetch_add(tickets: Any, number: int) -> int:
    """Add to the tickets' word; return its old value."""
    return int(tickets.fetch_and_op(np.array([number]), "sum")[0])
