"""ManyWork: one request over several nodes; it ends when the share of each node has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from smbox.errors import SmboxError
from smbox.many.node import Node
from smbox.paths.pair import PathPair
from smbox.paths.work import ByteRange
from smbox.work import Work

TURN_S: Final = 0.002
"""How long one share is driven while others wait; their sockets move on meanwhile."""


class Share:
    """What one node does of a request.

    Attributes:
        node: the node.
        error: what it failed with.
        is_done: whether it ended, well or not.

    Args:
        node: the node.
        offset: byte of the whole region's data where the node's part begins; None: it is of
            several regions, and lists no ranges.
        start: begins the share on the paths to the node; called once.
    """

    def __init__(
        self, node: Node, offset: int | None, start: Callable[[PathPair], Work]
    ) -> None:
        self.node = node
        self.error: SmboxError | None = None
        self.is_done = False
        self._offset = offset
        self._start = start
        self._is_begun = False
        self._work: Work | None = None

    def begin(self) -> None:
        """Send what can be sent at once; nothing, if that was done."""
        if not self._is_begun:
            self._is_begun = True
            try:
                self._work = self._start(self.node.paths)
                self._work.begin()
            except SmboxError as error:
                self.cancel()
                self._fail(error)

    def advance(self, deadline_s: float) -> None:
        """Drive it until it has ended, or the deadline."""
        if self._work is not None and not self.is_done:
            try:
                self.is_done = self._work.advance(deadline_s)
            except SmboxError as error:
                self._fail(error)

    def cancel(self) -> None:
        """End it; see Work."""
        if self._work is not None and not self.is_done:
            self._work.cancel()

    def settle(self, deadline_s: float) -> bool:
        """Find out what became of it after a cancel; False at the deadline."""
        if self._work is None or self.is_done or self.outcome() != "unknown":
            return True
        try:
            return self._work.advance(deadline_s)
        except SmboxError as error:
            self._fail(error)
            return True

    def progress(self) -> int:
        """See Work."""
        return 0 if self._work is None else self._work.progress()

    def outcome(self) -> str:
        """See Work; "all" where it ended well."""
        if self._work is None:  # an interrupt inside ``start`` leaves no work
            return "unknown" if self._is_begun and self.error is None else "none"
        return "all" if self.is_done and self.error is None else self._work.outcome()

    def ranges_done(self) -> list[ByteRange]:
        """List what is done, in bytes of the whole region's data."""
        offset = self._offset
        if self._work is None or offset is None:
            return []
        found = self._work.ranges_done()
        return [(first + offset, limit + offset) for first, limit in found]

    def facts(self) -> dict[str, object]:
        """See Work."""
        return {} if self._work is None else self._work.facts()

    def _fail(self, error: SmboxError) -> None:
        self.node.name(error)
        self.error = error
        self.is_done = True


class ManyWork(Work):
    """A request whose shares begin at once and go on side by side; see Work.

    A share that fails ends none of the others; the request then fails with the first error.

    Args:
        shares: at least one.
    """

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = shares
        self._is_cancelled = False

    @property
    def is_done(self) -> bool:
        """Whether all shares have ended."""
        return all(share.is_done for share in self._shares)

    @property
    def error(self) -> SmboxError | None:
        """What the first share that failed did fail with."""
        return next((share.error for share in self._shares if share.error is not None), None)

    def begin(self) -> None:
        """Begin all shares."""
        for share in self._shares:
            share.begin()

    def advance(self, deadline_s: float) -> bool:
        """Drive all shares in turn until they have ended, or the deadline; see Work."""
        if self._is_cancelled:
            settled = [share.settle(deadline_s) for share in self._shares]
            return all(settled)
        self.begin()
        while True:
            left = [share for share in self._shares if not share.is_done]
            for share in left:
                share.advance(_turn(deadline_s) if len(left) > 1 else deadline_s)
            if self.is_done:
                if self.error is not None:
                    raise self.error
                return True
            if time.monotonic() >= deadline_s:
                return False

    def progress(self) -> int:
        """Return a number that grows as long as any share gets on."""
        ended = sum(share.is_done for share in self._shares)
        return ended + sum(share.progress() for share in self._shares)

    def outcome(self) -> str:
        """Combine what is known of the shares."""
        found = {share.outcome() for share in self._shares}
        if len(found) == 1:
            return found.pop()
        return "unknown" if "unknown" in found else "partial"

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges of the whole region's data that are done; neighbours are joined."""
        joined: list[ByteRange] = []
        for first, limit in sorted(
            found for share in self._shares for found in share.ranges_done()
        ):
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(limit, joined[-1][1]))
            else:
                joined.append((first, limit))
        return joined

    def facts(self) -> dict[str, object]:
        """Tell the node that is waited for, what is in the way there, and each outcome."""
        late = [share for share in self._shares if not share.is_done]
        facts: dict[str, object] = {}
        for share in reversed(late):  # so that the first one's stay
            facts |= share.facts() | {
                "node": share.node.id,
                "node_address": share.node.address,
            }
        failed = {
            share.node.id: str(share.error) for share in self._shares if share.error is not None
        }
        if failed:
            facts["failed"] = failed
        return facts | {"parts": {share.node.id: share.outcome() for share in self._shares}}

    def cancel(self) -> None:
        """End all shares; see Work."""
        self._is_cancelled = True
        for share in self._shares:
            share.cancel()


def _turn(deadline_s: float) -> float:
    return min(deadline_s, time.monotonic() + TURN_S)
