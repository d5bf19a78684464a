"""What a client wants of a region, and a request under way: the words of every path. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from smbox.address import GlobalAddress
from smbox.dtypes import DType
from smbox.memory.kernels import KernelCode

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
    """

    address: GlobalAddress
    name: str
    kind: int
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    consistency: int


class Operation(NamedTuple):
    """One change of a range of a region's data, before it is cut into commits.

    Args:
        op: its name for errors and statistics: "put", "accumulate", "elastic", ...
        kernel: what is done.
        scale: a Python number, exact in the region's dtype.
        first: byte of the region's data where the range begins; on an element boundary,
            except for a raw put of bytes.
        limit: byte behind the range.
        source: C-contiguous bytes of limit - first elements' worth; for the whole kernels
            (COMPARE_SWAP, ARRIVE, WITHDRAW) their few words.
    """

    op: str
    kernel: KernelCode
    scale: float
    first: int
    limit: int
    source: Bytes


class Sink(Protocol):
    """Takes the old bytes of a change, committed piece by committed piece, in order."""

    def __call__(self, first: int, limit: int, old: Bytes) -> None:
        """Take the bytes that ``[first, limit)`` of the region's data held before.

        Called after the commit. ``old`` is only lent for the call. When an exception (an
        interrupt) left the last call half done, the same piece is given again: so a sink
        gives the same result when it is called twice with the same piece.
        """


class Work(Protocol):
    """A request under way."""

    def advance(self, deadline_s: float) -> bool:
        """Drive the request until it is done or the monotonic clock passes ``deadline_s``.

        A deadline in the past is one try without waiting. May be called again, by any
        thread, after False and after an interrupt: it goes on exactly once.

        Returns:
            True when done; False at the deadline.

        Raises:
            SmboxError: the request failed for good, and fails the same way when asked again.
        """

    def progress(self) -> int:
        """Return a number that grows as long as the request, or what is before it, gets on."""

    def let_go(self) -> None:
        """Stop using the caller's arrays for what is on its way; ``advance`` goes on."""

    def outcome(self) -> str:
        """Tell what is known of the effect: "not-sent", "partial" or "unknown"."""

    def ranges_done(self) -> list[ByteRange]:
        """List the byte ranges of the region's data that are certainly done, ascending."""

    def facts(self) -> dict[str, object]:
        """Tell what else a timeout's error should say, such as the pid in the way."""

    def cancel(self) -> None:
        """Begin nothing more of it: its arrays are about to change (an interrupted verb).

        What is committed stays; what is on its way may still land. Never waits.
        """
