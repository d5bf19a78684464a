"""What a client wants of a region, and a request under way: the words of every path. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.dtypes import DType
from smbox.errors import SmboxError
from smbox.handle import Work
from smbox.memory.kernels import KernelCode

__all__ = ["ByteRange", "Bytes", "Operation", "RegionInfo", "Sink", "Waiting", "Work"]

Bytes = NDArray[np.uint8]
ByteRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RegionInfo:
    """What a client knows about a region; it never changes while the region lives.

    Args:
        address: of its first byte; never used again once the region is freed.
        name: unique among the regions of its kind at one node.
        kind: one of ``layout.RegionKind``.
        dtype: of its elements.
        shape: row-major.
        nbytes: of its data.
        consistency: one of ``layout.Consistency``.
        node_uuid: of the memory that the region lies in.
    """

    address: GlobalAddress
    name: str
    kind: int
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    consistency: int
    node_uuid: bytes


class Operation(NamedTuple):
    """One change of a range of a region's data, before it is cut into commits.

    Args:
        op: its name for errors and statistics: "put", "accumulate", "elastic", ...
        kernel: what is done.
        scale: a Python number, exact in the region's dtype.
        first: byte of the region's data where the range begins, on an element boundary.
        limit: byte behind the range.
        source: ``limit - first`` bytes, C-contiguous; for the whole kernels
            (COMPARE_SWAP, ARRIVE, WITHDRAW) their few words.
        operand: dtype code of the source where it is narrower than the region's elements:
            the source is that much shorter; else 0.
    """

    op: str
    kernel: KernelCode
    scale: float
    first: int
    limit: int
    source: Bytes
    operand: int = 0


class Sink(Protocol):
    """Takes the old bytes of a change, committed piece by committed piece, in order."""

    @property
    def back(self) -> int:
        """What the native library hands back instead, an ``orders.Back``."""
        ...

    def address(self, operation: Operation) -> int:
        """Return where to, for an operation or a part of one."""
        ...

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Take the bytes that ``[first, limit)`` of the region's data held before.

        Called after the commit. ``old`` is only lent for the call. When an exception (an
        interrupt) left the last call half done, the same piece is given again: so a sink
        gives the same result when it is called twice with the same piece.
        """


class Waiting:
    """What waits for a version have in common: they change nothing and use no array."""

    is_done = False
    error: SmboxError | None = None

    def begin(self) -> None:
        """Nothing is sent before somebody waits."""

    def progress(self) -> int:
        """Waiting gets nowhere until it is over."""
        return 0

    def outcome(self) -> str:
        """Waiting changes nothing."""
        return "none"

    def ranges_done(self) -> list[ByteRange]:
        """Waiting changes nothing."""
        return []
