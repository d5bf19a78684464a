"""The version of a striped region, the sum of its parts' versions, and the wait for it."""

from __future__ import annotations

import time
from typing import Final

from smbox.deadline import look_s
from smbox.errors import RequestTimeoutError, SmboxError
from smbox.many.node import Nodes
from smbox.many.striping import StripedInfo
from smbox.work import Work

TURN_S: Final = 0.02
"""How long the wait looks at one part before it looks at the next."""


def versions_of(nodes: Nodes, info: StripedInfo, timeout_s: float | None = None) -> list[int]:
    """Return the versions of the parts; each node has the time, None: the box's."""
    found = []
    for part in info.parts:
        node = nodes[part.address.node]
        with node.named():
            found.append(node.paths.data(part).version(part, timeout_s))
    return found


class VersionSum(Work):
    """A wait until the versions add up; see Work.

    Attributes:
        found: the sum at the last look.

    Args:
        nodes: all, by id.
        info: the region.
        wanted: version.
    """

    def __init__(self, nodes: Nodes, info: StripedInfo, wanted: int) -> None:
        self.found = 0
        self._nodes = nodes
        self._info = info
        self._wanted = wanted
        self._waits: dict[int, Work] = {}
        self._silent: dict[str, object] = {}

    def advance(self, deadline_s: float) -> bool:
        """Look at the versions, at each change of a part, until they add up."""
        while True:
            try:
                versions = versions_of(self._nodes, self._info, look_s(deadline_s))
            except RequestTimeoutError as error:  # the wait is over, and changed nothing
                self._silent = {fact: error.facts[fact] for fact in ("node", "node_address")}
                return False
            self.found = sum(versions)
            if self.found >= self._wanted:
                self.cancel()
                return True
            if not self._any_moves(versions, deadline_s):
                return False

    def facts(self) -> dict[str, object]:
        """Tell how far the region is, and which node did not answer."""
        return {"version": self.found, "wanted": self._wanted} | self._silent

    def cancel(self) -> None:
        """Wait no more."""
        while self._waits:
            self._waits.popitem()[1].cancel()

    def _any_moves(self, versions: list[int], deadline_s: float) -> bool:
        """Wait for the next version of any part; False at the deadline."""
        for index, part in enumerate(self._info.parts):
            if index not in self._waits:
                data = self._nodes[part.address.node].paths.data(part)
                self._waits[index] = data.wait_version(part, versions[index] + 1)
        while True:
            for index, part in enumerate(self._info.parts):
                turn_s = min(deadline_s, time.monotonic() + TURN_S)
                try:
                    has_moved = self._waits[index].advance(turn_s)
                except SmboxError as error:
                    self._nodes[part.address.node].name(error)
                    raise
                if has_moved:
                    del self._waits[index]
                    return True
            if time.monotonic() >= deadline_s:
                return False
