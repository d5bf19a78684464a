"""The paths to several nodes: a request of a striped region becomes one for each node.

A verb goes to all parts at once and ends when all have ended. Each part keeps what region.py
promises; the whole is not one commit, and another client may see the change of one part before
that of another. An error names its node; the other parts have been changed. docs/many_nodes.md
says what is left then.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import cast

from smbox.address import GlobalAddress
from smbox.combining import Group, Tracked
from smbox.deadline import left_s
from smbox.errors import AddressRangeError, SmboxError
from smbox.many.node import Node, Nodes
from smbox.many.striping import StripedInfo, VersionSum, home_of, versions_of
from smbox.paths.opening import DataPath, OpenPaths
from smbox.paths.pair import PathPair
from smbox.paths.readings import PathRequest
from smbox.paths.sinks import Bytes
from smbox.paths.work import ByteRange, RegionInfo
from smbox.work import Work


class ManyPaths(PathPair):
    """What a box over several nodes shares with all it hands out. Pickles as its nodes.

    Attributes:
        nodes: by id.

    Args:
        nodes: at least one, with ids that differ.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: Nodes = {node.id: node for node in sorted(nodes, key=lambda node: node.id)}
        self._first = next(iter(self.nodes.values()))
        super().__init__(self._first.paths.config)  # for the settings, which all share

    def data(self, info: RegionInfo | None = None) -> DataPath:
        """Return the data path of a region: that of its node, or of all for a striped one."""
        if info is None or isinstance(info, StripedInfo):
            return cast(DataPath, ManyPath(self.nodes))  # with the verbs of the others
        node = self.at(info.address)
        with node.named():
            return node.paths.data(info)

    def open(self) -> OpenPaths:
        """Open the paths to all nodes; the services are those of the first."""
        reasons = [f"node {node.id}: {node.box.transport_reason}" for node in self._each()]
        return OpenPaths(self._first.control, self.data(), "; ".join(reasons))

    def home(self, name: str) -> Node:
        """Return the node that a name belongs to."""
        return self.nodes[home_of(str(name), self.nodes)]

    def at(self, address: GlobalAddress) -> Node:
        """Return the node that an address names; AddressRangeError: it is none of these."""
        node = self.nodes.get(address.node)
        if node is None:
            raise AddressRangeError(
                "no node of this box has such addresses",
                address=int(address),
                nodes=[*self.nodes],
            )
        return node

    def close(self) -> None:
        """Let go of all nodes, for good; all of them are told before one is waited for."""
        with ExitStack() as stack:  # from the last line on
            for node in self._each():
                stack.callback(node.paths.close)
            for node in self._each():
                stack.callback(node.paths.say_bye)

    def _each(self) -> Iterable[Node]:
        return self.nodes.values()

    def __reduce__(self) -> tuple[type[ManyPaths], tuple[object, ...]]:
        """Travel as the nodes' settings."""
        return ManyPaths, (tuple(self._each()),)


class ManyPath:
    """The data path of striped regions: each node does its share; see LocalPath.

    Args:
        nodes: all, by id.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    @property
    def transport(self) -> str:
        """How bytes travel: one of LocalPath or RemotePath, or several joined by "+"."""
        return "+".join(sorted({node.box.transport for node in self._nodes.values()}))

    def start(self, request: PathRequest) -> Work:
        """Describe a change or a read; see LocalPath."""
        if request.first == request.limit and request.info is not None:
            return self.wait_version(cast(StripedInfo, request.info), 0)
        shares = request.shares()
        return ManyWork([Share(self._nodes, offset, share) for offset, share in shares])

    def version(self, info: StripedInfo, timeout_s: float | None = None) -> int:
        """Return the sum of the parts' versions; see LocalPath."""
        return sum(versions_of(self._nodes, info, timeout_s))

    def wait_version(self, info: StripedInfo, version: int) -> VersionSum:
        """Begin to wait until the parts' versions add up; see LocalPath."""
        return VersionSum(self._nodes, info, version)

    def view(self, info: RegionInfo, first: int, limit: int) -> Bytes | None:
        """Return the memory itself, of rows of one part; see LocalPath.

        Raises:
            ConfigError: they lie in several parts.
        """
        piece = info.one_piece(first, limit, "local")
        node = self._nodes[piece.info.address.node]
        with node.named():
            return node.paths.data(piece.info).view(piece.info, piece.first, piece.limit)

    def flush(self, deadline_s: float) -> bool:
        """Complete every change at all nodes, also behind one that fails; see LocalPath."""
        first_error: SmboxError | None = None
        for node in self._nodes.values():
            try:
                with node.named():
                    node.box.flush(timeout_s=left_s(deadline_s))
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return True


class Share(Tracked):
    """What one node does of a request.

    Attributes:
        node: the node.

    Args:
        nodes: all, by id.
        offset: byte of the whole region's data where the node's part begins; None: it is of
            several regions, and lists no ranges.
        wanted: the share, of regions of one node.
    """

    def __init__(self, nodes: Nodes, offset: int | None, wanted: PathRequest) -> None:
        super().__init__(Work())
        assert wanted.info is not None
        self.node = nodes[wanted.info.address.node]
        self._offset = offset
        self._wanted: PathRequest | None = wanted

    def start(self) -> None:
        """Start and begin it, unless that was done; what fails is kept."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self.work = _Starting()
            try:
                self.work = self.node.paths.work_of(wanted)
                self.work.begin()
            except SmboxError as error:
                if isinstance(self.work, _Starting):
                    self.work = Work()  # nothing was begun
                self.work.cancel()
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Note what it failed with, at which node."""
        if isinstance(error, SmboxError):
            self.node.name(error)
        super().fail(error)

    def facts(self) -> dict[str, object]:
        """Tell what is in the way, at which node."""
        return super().facts() | {"node": self.node.id, "node_address": self.node.address}

    def ranges_done(self) -> list[ByteRange]:
        """List what is done, in bytes of the whole region's data."""
        if (offset := self._offset) is None:
            return []
        return [(first + offset, limit + offset) for first, limit in self.work.ranges_done()]


class _Starting(Work):
    """A share whose start was interrupted: what was begun is not known."""

    def advance(self, deadline_s: float) -> bool:  # noqa: ARG002 - nobody can drive it
        """Nothing will be known."""
        return False

    def outcome(self) -> str:
        """Nothing is known."""
        return "unknown"


class ManyWork(Group[Share]):
    """A request whose shares begin at once and go on side by side; see Work.

    A share that fails ends none of the others; the request then fails with the first error.
    """

    def advance(self, deadline_s: float) -> bool:
        """Drive all shares; an error that tells an outcome tells that of the whole."""
        try:
            return super().advance(deadline_s)
        except SmboxError as error:
            if "outcome" not in error.facts:
                raise
            whole = {"outcome": self.outcome(), "parts": self._known()}
            raise type(error)(error.message, **error.facts | whole) from error

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
        return facts | {"parts": self._known()}

    def _known(self) -> dict[int, str]:
        return {share.node.id: share.known() for share in self._parts}
