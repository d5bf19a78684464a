"""The data path of striped regions: each request becomes one request for each node.

A verb is sent to all parts at once and ends when all have ended. Each part keeps the promises
of region.py. The whole is not one commit: another client may see the change of one part before
that of another. An error names its node; the other parts have been changed. docs/many_nodes.md
describes the state left behind.
"""

from __future__ import annotations

import time
from contextlib import suppress
from copy import copy
from typing import Final, cast

from smbox.combining import Group, Tracked
from smbox.deadline import deadline_of, left_s
from smbox.errors import RequestTimeoutError, SmboxError
from smbox.many.sharing import one_piece, shares_of
from smbox.many.striping import Nodes, StripedInfo, versions_of
from smbox.paths.requests import ByteRange, Changes, Operation, PathRequest, RegionInfo
from smbox.paths.sinks import Bytes
from smbox.work import NestedCallError, Work

VERSION_TURN_S: Final = 0.02
"""How long a wait for a version waits for one part before it turns to the next."""


class ManyPath:
    """The data path of striped regions; see LocalPath.

    Args:
        nodes: all nodes, by id.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    @property
    def transport(self) -> str:
        """The transport of the nodes, or several joined by "+"."""
        return "+".join(sorted({node.box.transport for node in self._nodes.values()}))

    def start(self, request: PathRequest) -> Work:
        """Return an unstarted change or read; see LocalPath.

        Raises:
            NestedCallError: this thread is inside a call on one of the nodes; nothing changed.
        """
        if request.first == request.limit and request.info is not None:
            return self.wait_version(cast(StripedInfo, request.info), 0)
        shares = [Share(self._nodes, offset, share) for offset, share in shares_of(request)]
        for share in shares:  # before any: a path may do its share as soon as it starts
            with share.node.named() as paths:
                paths.check_not_nested()
        return ManyWork(shares)

    def version(self, info: StripedInfo, timeout_s: float) -> int:
        """Return the sum of the parts' versions; see LocalPath."""
        return sum(versions_of(self._nodes, info, deadline_of(timeout_s)))

    def wait_version(self, info: StripedInfo, version: int) -> VersionSum:
        """Return a wait until the sum of the parts' versions is reached; see LocalPath."""
        return VersionSum(self._nodes, info, version)

    def view(self, info: RegionInfo, first: int, limit: int) -> Bytes | None:
        """Return the mapped memory of rows of one part; see LocalPath.

        Raises:
            ConfigError: the rows lie in several parts.
        """
        piece = one_piece(info, first, limit, "local")
        with self._nodes[piece.info.address.node].named() as paths:
            return paths.data(piece.info).view(piece.info, piece.first, piece.limit)

    def flush(self, deadline_s: float) -> bool:
        """Complete every change at all nodes, even if one fails; see LocalPath.

        Raises:
            SmboxError: of the first node that raises one; notes tell those of other nodes.
        """
        errors: list[SmboxError] = []
        for node in self._nodes.values():
            try:
                with node.named():
                    node.box.flush(timeout_s=left_s(deadline_s))
            except SmboxError as error:
                errors.append(error)
            with suppress(IndexError):  # other threads flush meanwhile
                while True:
                    errors.append(node.unreported.popleft())
        if errors:
            for each in errors[1:]:
                for note in (f"{type(each).__name__}: {each}", *getattr(each, "__notes__", ())):
                    errors[0].add_note(note)
            raise errors[0]
        return True


class Share(Tracked):
    """One node's share of a request.

    Attributes:
        node: the node.

    Args:
        nodes: all nodes, by id.
        offset: first byte of the node's part in the whole region's data; None: the request
            changes several regions, so it has no ranges.
        request: the share, of regions of one node.
    """

    def __init__(self, nodes: Nodes, offset: int | None, request: PathRequest) -> None:
        super().__init__(Work())
        assert request.info is not None
        self.node = nodes[request.info.address.node]
        self._offset = offset
        self._request: PathRequest | None = request
        self._unreported: SmboxError | None = None
        self._before = 0  # what the work's progress was when it was made

    def start(self) -> None:
        """Start the share unless it was started; record the error if that fails."""
        request, self._request = self._request, None
        if request is not None:
            try:
                self.work = self.node.paths.work_of(request)
                self._before = self.work.progress()
                self.work.begin()
            except SmboxError as error:
                self.work.cancel()
                self.fail(error)
                if isinstance(request, Operation | Changes):
                    self._unreported = copy(error)  # its traceback would keep the arrays
                    self.node.unreported.append(self._unreported)

    def mark_reported(self) -> None:
        """Note that a call raises the error of the change, of which this is a part."""
        self.work.mark_reported()
        if self._unreported is not None:
            with suppress(ValueError):  # a flush has raised it
                self.node.unreported.remove(self._unreported)

    def fail(self, error: Exception) -> None:
        """Record the error that the share failed with; it names the node."""
        if isinstance(error, SmboxError):
            self.node.name(error)
        super().fail(error)

    def progress(self) -> int:
        """Return a number that grows with the share's progress; its start is none."""
        return self.is_done + self.work.progress() - self._before

    def facts(self) -> dict[str, object]:
        """Return what the share waits for, and the node."""
        return super().facts() | {"node": self.node.id, "node_address": self.node.address}

    def ranges_done(self) -> list[ByteRange]:
        """Return the ranges that are done, in bytes of the whole region's data."""
        if (offset := self._offset) is None:
            return []
        return [(first + offset, limit + offset) for first, limit in self.work.ranges_done()]


class ManyWork(Group[Share]):
    """A request whose shares start at once and are driven side by side; see Work.

    A share that fails does not end the others. The request then fails with the first error.
    """

    def advance(self, deadline_s: float) -> bool:
        """Drive all shares; an error tells the whole outcome, a refusal unless it is "none"."""
        try:
            return super().advance(deadline_s)
        except NestedCallError:
            raise
        except SmboxError as error:
            whole = {"outcome": self.outcome(), "parts": self._known()}
            if whole["outcome"] == "none" and "outcome" not in error.facts:
                raise
            whole["ranges_done"] = self.ranges_done()
            raise type(error)(error.message, **error.facts | whole) from error

    def progress(self) -> int:
        """Return a number that grows with each share's progress."""
        return sum(share.progress() for share in self._parts)

    def mark_reported(self) -> None:
        """Note that a call raises the error of the change, of which the shares are parts."""
        for share in self._parts:
            share.mark_reported()

    def ranges_done(self) -> list[ByteRange]:
        """Return the ranges of the whole region's data that are done; adjacent ones merged."""
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
        """Return the node that is waited for, what it waits for, and each share's outcome."""
        facts = super().facts()
        failed = {
            share.node.id: str(share.error) for share in self._parts if share.error is not None
        }
        if failed:
            facts["failed"] = failed
        return facts | {"parts": self._known()}

    def _known(self) -> dict[int, str]:
        return {share.node.id: share.known() for share in self._parts}


class VersionSum(Work):
    """A wait until the sum of the parts' versions is reached; see Work.

    Attributes:
        found: the last sum that was read.

    Args:
        nodes: all nodes, by id.
        info: the region.
        wanted: the sum to wait for.
    """

    def __init__(self, nodes: Nodes, info: StripedInfo, wanted: int) -> None:
        self.found = 0
        self._nodes = nodes
        self._info = info
        self._wanted = wanted
        self._waits: dict[int, Work] = {}
        self._silent: dict[str, object] = {}

    def advance(self, deadline_s: float) -> bool:
        """Read the versions after each change of a part until the sum is reached."""
        while True:
            try:
                versions = versions_of(self._nodes, self._info, deadline_s)
            except RequestTimeoutError as error:  # ends the wait, which changed nothing
                self._silent = {fact: error.facts[fact] for fact in ("node", "node_address")}
                return False
            self.found = sum(versions)
            if self.found >= self._wanted:
                return True
            if not self._any_changes(versions, deadline_s):
                return False

    def facts(self) -> dict[str, object]:
        """Return the last sum, the sum to wait for, and a node that did not answer."""
        return {"version": self.found, "wanted": self._wanted} | self._silent

    def cancel(self) -> None:
        """End the waits."""
        while self._waits:
            self._waits.popitem()[1].cancel()

    def _any_changes(self, versions: list[int], deadline_s: float) -> bool:
        """Wait for the next version of any part; return False at the deadline."""
        while True:
            for part, version in zip(self._info.parts, versions, strict=True):
                with self._nodes[part.address.node].named() as paths:
                    if part.address not in self._waits:
                        wait = paths.data(part).wait_version(part, version + 1)
                        self._waits[part.address] = wait
                    turn_s = min(deadline_s, time.monotonic() + VERSION_TURN_S)
                    if self._waits[part.address].advance(turn_s):
                        del self._waits[part.address]
                        return True
            if time.monotonic() >= deadline_s:
                return False
