"""Deaths in a row of a memory node that a launcher restarts."""

from __future__ import annotations

import time
from typing import Any, Final

from smbox.errors import ConnectError

__all__ = ["RESTARTS_MAX", "STEADY_S", "NodeDeaths"]

RESTARTS_MAX: Final = 5
STEADY_S: Final = 60.0
"""A node that ran for this time started correctly: its death resets the count of restarts."""


class NodeDeaths:
    """Counts the deaths of a node, and ends its restarts.

    Attributes:
        in_a_row: number of deaths, each within STEADY_S of its start.
        started_s: time of the last start, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.started_s = 0.0

    def start(self) -> None:
        """Note that the node is started now."""
        self.started_s = time.monotonic()

    def count(self, **facts: Any) -> None:
        """Count a death.

        Args:
            **facts: what is known of it, for the error.

        Raises:
            ConnectError: the node died too often in a row.
        """
        lived_s = time.monotonic() - self.started_s
        self.in_a_row = 1 if lived_s > STEADY_S else self.in_a_row + 1
        if self.in_a_row > RESTARTS_MAX:
            raise ConnectError(f"the memory node died {self.in_a_row} times in a row", **facts)
