"""What a client wants of a node and its regions: the words of every path. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.array import as_bytes
from smbox.errors import ConfigError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.region_header import Described
from smbox.paths.sinks import Bytes, Sink
from smbox.wire.ops import carried_nbytes, cut

Sums = NDArray[np.float64]
ByteRange = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo(Described):
    """What a client knows about a region; it never changes while the region lives.

    Args:
        address: of its first byte; never used again once the region is freed.
        node_uuid: of the memory that the region lies in.
    """

    address: GlobalAddress
    node_uuid: bytes

    def pieces(self, first: int, limit: int) -> list[Piece]:
        """Cut bytes ``[first, limit)`` of its data by the nodes that they lie on: here one."""
        return [Piece(self, first, limit, 0)]

    def one_piece(self, first: int, limit: int, verb: str) -> Piece:
        """Return the only piece; ConfigError, which names the verb: there are several."""
        piece, *others = self.pieces(first, limit)
        if others:
            raise ConfigError(
                f"{verb} is of rows of one part: take a slice by region.parts",
                region=self.name,
                nodes=[each.info.address.node for each in (piece, *others)],
            )
        return piece


class Piece(NamedTuple):
    """Bytes of a region's data that lie on one node.

    Attributes:
        info: the region of that node that holds them.
        first: byte of its data.
        limit: byte behind the last.
        offset: byte of the whole region's data where the data of ``info`` begins.
    """

    info: RegionInfo
    first: int
    limit: int
    offset: int

    @property
    def begin(self) -> int:
        """The first byte, of the whole region's data."""
        return self.offset + self.first

    @property
    def nbytes(self) -> int:
        """How many bytes they are."""
        return self.limit - self.first


@dataclass(frozen=True, slots=True)
class CreateRequest(Described):
    """What a client asks for when it creates a region.

    Args:
        init: a scalar that every element begins with; None: zeros.
        publish: False builds a region that only its creator may write, by address, until
            ``ControlPath.publish`` makes it visible.
        exist_ok: an existing region of the same layout is the answer, not an error.
    """

    init: bool | int | float | None = None
    publish: bool = True
    exist_ok: bool = False


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a client learned about its memory node from the handshake.

    Args:
        name: of the node; the prefix of its segments.
        uuid: 16 bytes, of the memory: another memory has another one.
        node_id: the upper bits of the node's addresses.
        incarnation: how often a node has opened this memory.
    """

    name: str
    uuid: bytes
    node_id: int
    incarnation: int


class Operation(Struct, frozen=True, eq=False):
    """One change of a range of a region's data.

    Args:
        info: the region.
        op: its name for errors and statistics: "put", "accumulate", "elastic", ...
        kernel: what is done: a ``KernelCode``, or an ``OptimizerCode``.
        scale: a Python number, exact in the region's dtype.
        first: byte of the region's data where the range begins, on an element boundary.
        limit: byte behind the range.
        source: C-contiguous, as many elements as the range has; for the whole kernels
            (COMPARE_SWAP, ARRIVE, WITHDRAW, the SCATTERs) an operand of its own length; of an
            ``accumulate_from`` or a SCALE empty.
        operand: dtype code of the source where it is narrower than the region's elements:
            the source is that much shorter; else 0.
        sink: takes the old bytes, if they are wanted.
        states: regions of an optimizer's state, in the order of its row in ``OPTIMIZERS``.
        parameters: of an optimizer, in the order of that row.
    """

    info: RegionInfo
    op: str
    kernel: int
    scale: float
    first: int
    limit: int
    source: NDArray[Any]
    operand: int = 0
    sink: Sink | None = None
    states: tuple[RegionInfo, ...] = ()
    parameters: tuple[float, ...] = ()

    def operand_of(self, first: int, limit: int) -> Bytes:
        """Return the part of the source that belongs to bytes ``[first, limit)``."""
        begin = carried_nbytes(first - self.first, self.operand)
        end = carried_nbytes(limit - self.first, self.operand)
        return as_bytes(self.source)[begin:end]

    def stripes(self) -> list[Operation]:
        """Cut it into changes of one stripe each, of which a batch is made."""
        first, limit = self.first, self.limit
        if 0 < limit - first <= STRIPE_NBYTES - first % STRIPE_NBYTES:
            return [self]
        return [
            replace(self, first=at, limit=end, source=self.operand_of(at, end))
            for at, end in cut(first, limit, STRIPE_NBYTES)
        ]

    def shares(self) -> Sequence[tuple[int, Self]]:
        """Cut it by the nodes that its region lies on.

        Returns:
            What each node does, behind the byte of the whole region's data where the data of
            that node begins.
        """
        span = self.first, self.limit
        pieces = self.info.pieces(*span)
        if pieces[0].info is self.info:
            return [(0, self)]
        by_state = zip(*(state.pieces(*span) for state in self.states), strict=True)
        states = list(by_state) or [()] * len(pieces)
        return [
            (piece.offset, self._share(piece, tuple(each.info for each in mine)))
            for piece, mine in zip(pieces, states, strict=True)
        ]

    def _share(self, piece: Piece, states: tuple[RegionInfo, ...]) -> Self:
        begin, limit = piece.begin - self.first, piece.begin - self.first + piece.nbytes
        return replace(
            self,
            info=piece.info,
            first=piece.first,
            limit=piece.limit,
            source=self.operand_of(piece.begin, piece.begin + piece.nbytes),
            sink=None if self.sink is None else self.sink.part(begin, limit, piece.first),
            states=states,
        )


class Signalled(Operation, frozen=True, eq=False, kw_only=True):
    """A change and a signal: its success is the outcome "all".

    It has no sink, and at least one byte.

    Args:
        signal: a change of a counter of the same node, which takes effect once all of this
            has, and never if this failed or was cancelled before.
    """

    signal: Operation


class Copying(Operation, frozen=True, eq=False, kw_only=True):
    """A change whose operand is as many bytes of another region, read by stripes.

    Args:
        other: the region.
        other_first: byte of its data where the operand begins.
    """

    other: RegionInfo
    other_first: int

    def shares(self) -> Sequence[tuple[int, Self]]:
        """Cut it by node, where the rows of both regions lie beside; see ``Operation``."""
        other_limit = self.other_first + self.limit - self.first
        others = self.other.pieces(self.other_first, other_limit)
        return [
            (offset, replace(share, other=piece.info, other_first=piece.first))
            for (offset, share), piece in zip(super().shares(), others, strict=True)
        ]


class Changes(Struct, frozen=True, eq=False):
    """Many changes in order, of one stripe each; no transaction.

    Args:
        op: the verb's name for errors.
        info: the region that all of them change; None: they are of several.
        operations: the changes.
    """

    op: str
    info: RegionInfo | None
    operations: list[Operation]
    first: ClassVar[int] = 0

    @property
    def limit(self) -> int:
        """Behind the last of them."""
        return len(self.operations)

    def shares(self) -> list[tuple[int | None, Changes]]:
        """Cut them by node, those of each in order; of several regions without offsets."""
        whole = [] if self.info is None else self.info.pieces(0, self.info.nbytes)
        offsets = {piece.info.address.node: piece.offset for piece in whole}
        by_node: dict[int, list[Operation]] = {}
        for operation in self.operations:
            by_node.setdefault(operation.info.address.node, []).append(operation)
        return [
            (offsets.get(node), Changes(self.op, mine[0].info, mine))
            for node, mine in by_node.items()
        ]
