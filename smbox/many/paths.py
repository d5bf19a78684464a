"""The paths to several nodes: a request of a striped region becomes one for each node.

A verb goes to all parts at once and ends when all have ended. Each part keeps what region.py
promises; the whole is not one commit, and another client may see the change of one part before
that of another. An error names its node; the other parts have been changed. docs/many_nodes.md
says what is left then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.array import as_bytes
from smbox.deadline import left_s
from smbox.errors import AddressRangeError, ConfigError, SmboxError
from smbox.many.node import Node, Nodes
from smbox.many.striping import StripedInfo, home_of
from smbox.many.work import ManyWork, Share, VersionSum, versions_of
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths import requests
from smbox.paths.opening import DataPath, Opened
from smbox.paths.pair import PathPair
from smbox.paths.work import (
    ByteRange,
    Bytes,
    Done,
    Operation,
    Piece,
    RegionInfo,
    RowsWanted,
    Sums,
)
from smbox.verbs import shares_of
from smbox.wire.ops import carried_nbytes, count
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
            return cast(DataPath, ManyPath(self.nodes, info))  # with the verbs of the others
        node = self.at(info.address)
        with node.named():
            return node.paths.data(info)

    def open(self) -> Opened:
        """Open the paths to all nodes; the services are those of the first."""
        reasons = [f"node {node.id}: {node.box.transport_reason}" for node in self._each()]
        return Opened(self._first.control, self.data(), "; ".join(reasons))

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
    """The data path of striped regions: each node does its share of a request; see LocalPath.

    There is no ``signalled``: a striped region and a counter never lie in one memory.

    Args:
        nodes: all, by id.
        info: the region that it is wanted for; None: several.
    """

    def __init__(self, nodes: Nodes, info: StripedInfo | None) -> None:
        self._nodes = nodes
        self._info = info

    @property
    def transport(self) -> str:
        """How bytes travel: one of LocalPath or RemotePath, or several joined by "+"."""
        return "+".join(sorted({node.box.transport for node in self._nodes.values()}))

    def change(self, operation: Operation) -> Work:
        """Describe a change; see LocalPath."""
        return ManyWork(
            [
                self._share(piece, partial(requests.work_of, operation=share))
                for piece, share in shares_of(operation)
            ]
        )

    def change_from(self, operation: Operation, source: RegionInfo, source_first: int) -> Work:
        """Describe a change from another region, whose rows lie beside; see LocalPath."""
        source_limit = source_first + operation.limit - operation.first
        shares = shares_of(operation)
        beside = source.pieces(source_first, source_limit)

        def start(share: Operation, other: Piece, paths: PathPair) -> Work:
            return paths.data(share.info).change_from(share, other.info, other.first)

        return ManyWork(
            [
                self._share(piece, partial(start, share, other))
                for (piece, share), other in zip(shares, beside, strict=True)
            ]
        )

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int = 0
    ) -> Work:
        """Describe a read; see LocalPath."""
        line = as_bytes(out)

        def start(piece: Piece, paths: PathPair) -> Work:
            begin = carried_nbytes(piece.begin - first, operand)
            mine = line[begin : begin + carried_nbytes(piece.nbytes, operand)]
            span = piece.first, piece.limit
            return paths.data(piece.info).read(piece.info, *span, mine, operand) or Done(*span)

        return self._each(info.pieces(first, limit), start)

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Describe a read of rows, of the nodes that have some of them; see LocalPath."""
        shares = []
        for piece in info.pieces(wanted.first, info.nbytes):
            first_row = (piece.begin - wanted.first) // wanted.row_nbytes
            limit_row = first_row + piece.nbytes // wanted.row_nbytes
            at, end = wanted.places.searchsorted([first_row, limit_row]).tolist()
            if at < end:
                mine = wanted._replace(
                    first=piece.first,
                    places=wanted.places[at:end] - first_row,
                    order=wanted.order[at:end],
                )
                shares.append(self._share(piece, partial(_gather, piece.info, mine)))
        return ManyWork(shares)

    def dot(
        self, info: RegionInfo, span: ByteRange, other: RegionInfo, begin: int, sums: Sums
    ) -> Work:
        """Describe a dot product; ``sums`` has those of each part in turn; see LocalPath."""
        pieces = info.pieces(*span)
        beside = other.pieces(begin, begin + span[1] - span[0])
        shares, at = [], 0

        def start(piece: Piece, other: Piece, sums: Sums, paths: PathPair) -> Work:
            span = piece.first, piece.limit
            return paths.data(piece.info).dot(piece.info, span, other.info, other.first, sums)

        for piece, each in zip(pieces, beside, strict=True):
            end = at + count(piece.first, piece.limit, STRIPE_NBYTES)
            begin_dot = partial(start, piece, each, sums[at:end])
            shares.append(self._share(piece, begin_dot))
            at = end
        return ManyWork(shares)

    def snapshot(self, info: RegionInfo, first: int, limit: int, out: Bytes) -> Work:
        """Describe a read at one moment, of rows of one part; see LocalPath.

        Raises:
            ConfigError: they lie in several parts.
        """
        piece = _only(info, first, limit, "snapshot")

        def start(piece: Piece, paths: PathPair) -> Work:
            return paths.data(piece.info).snapshot(piece.info, piece.first, piece.limit, out)

        return self._each([piece], start)

    def batch(self, operations: Sequence[Operation]) -> Work:
        """Describe many changes, of regions of one node each; see LocalPath.

        Those of one node take effect in order. Of several regions no ranges are listed.
        """
        whole = [] if self._info is None else self._info.pieces(0, self._info.nbytes)
        offsets = {piece.info.address.node: piece.offset for piece in whole}
        by_node: dict[int, list[Operation]] = {}
        for operation in operations:
            by_node.setdefault(operation.info.address.node, []).append(operation)

        def start(mine: list[Operation], paths: PathPair) -> Work:
            return paths.data().batch(mine)

        return ManyWork(
            [
                Share(self._nodes[node_id], offsets.get(node_id), partial(start, mine))
                for node_id, mine in by_node.items()
            ]
        )

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
        piece = _only(info, first, limit, "local")
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

    def _each(
        self, pieces: Iterable[Piece], start: Callable[[Piece, PathPair], Work]
    ) -> ManyWork:
        return ManyWork([self._share(each, partial(start, each)) for each in pieces])

    def _share(self, piece: Piece, start: Callable[[PathPair], Work]) -> Share:
        return Share(self._nodes[piece.info.address.node], piece.offset, start)


def _gather(info: RegionInfo, wanted: RowsWanted, paths: PathPair) -> Work:
    return paths.data(info).gather(info, wanted)


def _only(info: RegionInfo, first: int, limit: int, wanted: str) -> Piece:
    piece, *others = info.pieces(first, limit)
    if others:
        raise ConfigError(
            f"{wanted} is of rows of one part: take a slice by region.parts",
            region=info.name,
            nodes=[each.info.address.node for each in (piece, *others)],
        )
    return piece
