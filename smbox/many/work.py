"""Requests over several nodes, which end when the share of each node has ended."""

from __future__ import annotations

import time
from typing import Final

from smbox.combining import Part, Together
from smbox.deadline import look_s
from smbox.errors import RequestTimeoutError, SmboxError
from smbox.many.node import Nodes
from smbox.many.striping import StripedInfo
from smbox.paths import requests
from smbox.paths.readings import Wanted
from smbox.paths.work import ByteRange
from smbox.work import Work

VERSION_TURN_S: Final = 0.02
"""How long a wait for a version looks at one part before it looks at the next."""


class Share(Part):
    """What one node does of a request.

    Attributes:
        node: the node.

    Args:
        nodes: all, by id.
        offset: byte of the whole region's data where the node's part begins; None: it is of
            several regions, and lists no ranges.
        wanted: the share, of regions of one node.
    """

    def __init__(self, nodes: Nodes, offset: int | None, wanted: Wanted) -> None:
        super().__init__()
        assert wanted.info is not None
        self.node = nodes[wanted.info.address.node]
        self._offset = offset
        self._wanted = wanted
        self._is_begun = False

    def begin(self) -> None:
        """Send what can be sent at once; nothing, if that was done."""
        if not self._is_begun:
            self._is_begun = True
            try:
                self._work = requests.work_of(self.node.paths, self._wanted)
                self._work.begin()
            except SmboxError as error:
                self.cancel()
                self._fail(error)

    def outcome(self) -> str:
        """See Work; "all" where it ended well."""
        if self._work is None and self._is_begun and self.error is None:
            return "unknown"  # an interrupt of its start leaves no work
        return super().outcome()

    def facts(self) -> dict[str, object]:
        """Tell what is in the way, at which node."""
        return super().facts() | {"node": self.node.id, "node_address": self.node.address}

    def ranges_done(self) -> list[ByteRange]:
        """List what is done, in bytes of the whole region's data."""
        offset = self._offset
        if self._work is None or offset is None:
            return []
        found = self._work.ranges_done()
        return [(first + offset, limit + offset) for first, limit in found]

    def _fail(self, error: Exception) -> None:
        if isinstance(error, SmboxError):
            self.node.name(error)
        super()._fail(error)


class ManyWork(Together[Share]):
    """A request whose shares begin at once and go on side by side; see Work.

    A share that fails ends none of the others; the request then fails with the first error.
    """

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges of the whole region's data that are done; neighbours are joined."""
        joined: list[ByteRange] = []
        for first, limit in sorted(
            found for share in self._parts for found in share.ranges_done()
        ):
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(limit, joined[-1][1]))
            else:
                joined.append((first, limit))
        return joined

    def facts(self) -> dict[str, object]:
        """Tell the node that is waited for, what is in the way there, and each outcome."""
        facts = super().facts()
        failed = {
            share.node.id: str(share.error) for share in self._parts if share.error is not None
        }
        if failed:
            facts["failed"] = failed
        return facts | {"parts": {share.node.id: share.outcome() for share in self._parts}}


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
                turn_s = min(deadline_s, time.monotonic() + VERSION_TURN_S)
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
