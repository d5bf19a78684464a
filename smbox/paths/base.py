"""What regions speak to: the data path and the control path of one memory node. Pure.

Two implementations of DataPath exist: ``local`` commits in this process on mapped memory,
``remote`` sends messages. A region never knows which one it has. Requests become Work: an
object that moves on while somebody waits for it, and that goes on exactly once after a timeout.

The rules of a path:

- A path is used by every thread of a Box; what belongs to a thread (writer, channel) the path
  keeps by thread. Work belongs to the path, not to the thread that began it.
- One thread's operations on one region take effect in the order they were begun.
- Sources and outputs are untouchable until their Work is done; a path never copies in order
  to let go of them earlier, unless it says so.
- ``abandon`` is what a forked child does: forget everything, close, never unlock nor send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from smbox.memory.region_header import Described
from smbox.paths.work import (
    ByteRange,
    Bytes,
    Lease,
    Operation,
    RegionInfo,
    RowsWanted,
    Sums,
    Work,
)


@dataclass(frozen=True, slots=True)
class CreateRequest(Described):
    """What a client asks for when it creates a region.

    Args:
        init: a scalar that every element begins with; None: zeros.
        publish: False builds a region that only its creator may write, by address, until
            ``ControlPath.publish`` makes it visible.
        exist_ok: an existing region of the same layout is the answer, not an error.
        scratch: the node may free it when the thread's channel resumes.
    """

    init: bool | int | float | None = None
    publish: bool = True
    exist_ok: bool = False
    scratch: bool = False


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


class DataPath(Protocol):
    """Moves bytes between this process and the regions of one node."""

    @property
    def transport(self) -> str:
        """Name how bytes travel: "shm", "tcp", "ipc" or "inproc"."""

    def change(self, operation: Operation) -> Work | None:
        """Do a change at once where nothing is in its way, or describe what is left of it.

        None means that it is done. What is described takes effect once it is begun or waited
        for. A change of no bytes only sees that the region lives.
        """

    def signalled(self, operation: Operation, signal: Operation) -> Work:
        """Describe a change with a signal; it takes effect once it is begun or waited for.

        Args:
            operation: the change, without a sink.
            signal: a change of a counter of the same node, which takes effect once all of
                ``operation`` has, and never if that failed or was cancelled before; its
                success is the outcome "all".
        """

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int = 0
    ) -> Work | None:
        """Read bytes ``[first, limit)`` of the data at once, or describe what is left of it.

        None means that it is done. A read of no bytes only sees that the region lives.

        Args:
            info: the region.
            first: byte of its data, at an element.
            limit: byte behind the last.
            out: C-contiguous, as many elements as the range has.
            operand: dtype code of ``out`` where it is narrower than the region's elements.
        """

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Describe a read of rows."""

    def change_from(self, operation: Operation, source: RegionInfo, source_first: int) -> Work:
        """Describe a change whose operand is as many bytes of ``source``, read by stripes."""

    def dot(
        self, info: RegionInfo, span: ByteRange, other: RegionInfo, begin: int, sums: Sums
    ) -> Work:
        """Describe a read of two ranges of floats that brings only sums of their products.

        Args:
            info: the region.
            span: first byte of its data, and the byte behind the last.
            other: as many bytes of the same dtype; it may be the same region.
            begin: first byte of its data.
            sums: receives ``f64[stripes of the span]``, one sum for each stripe of ``info``.
        """

    def snapshot(
        self, info: RegionInfo, first: int, limit: int, out: Bytes, lease: Lease | None
    ) -> Work:
        """Describe a read of a range as it was at one moment.

        Args:
            info: the region.
            first: byte of its data.
            limit: byte behind the last.
            out: ``u8[limit - first]``.
            lease: of staging as large as the range, where ``stages_snapshots`` says so.
        """

    def stages_snapshots(self, first: int, limit: int) -> bool:
        """Tell whether ``snapshot`` needs staging for a range."""

    def batch(self, operations: Sequence[Operation]) -> Work:
        """Describe many changes of one stripe each, in order; no transaction."""

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:
        """Return how many commits the region has seen, by the timeout or the box's."""

    def wait_version(self, info: RegionInfo, version: int) -> Work:
        """Begin to wait until the region's version is at least ``version``."""

    def view(self, info: RegionInfo) -> NDArray[Any] | None:
        """Return the region's memory, typed and shaped, if this process can map it."""

    def flush(self, deadline_s: float) -> bool:
        """Complete every change begun before this call, by any thread; False at the deadline.

        Raises:
            SmboxError: what the first failed change failed with, if nobody waited for it.
        """

    def close(self) -> None:
        """Let go of everything; changes under way are not waited for. Idempotent."""

    def abandon(self) -> None:
        """Let go after a fork, in the child: never send, never unlock, never unlink."""


class ControlPath(Protocol):
    """The node's own services: its directory of regions. Any thread may call."""

    @property
    def node(self) -> NodeInfo:
        """What the handshake told."""

    @property
    def address(self) -> str:
        """The endpoint, such as "tcp://127.0.0.1:7070"."""

    def create(self, spec: CreateRequest, timeout_s: float) -> RegionInfo:
        """Create a region; RegionExistsError, LayoutMismatchError, OutOfMemoryError."""

    def publish(self, info: RegionInfo, timeout_s: float, *, exist_ok: bool) -> RegionInfo:
        """Make a region under construction visible, or give way to one that is there.

        Returns:
            ``info``, or with ``exist_ok`` the region that won; then ours is gone.

        Raises:
            RegionExistsError: another won and ``exist_ok`` is False; ours is gone.
        """

    def attach(
        self, name: str, kind: int, timeout_s: float, answer_s: float | None = None
    ) -> RegionInfo:
        """Find a region by name, waiting for it; RegionNotFoundError after the timeout.

        Args:
            name: its.
            kind: one of ``layout.RegionKind``.
            timeout_s: how long it may not be there; 0: one look.
            answer_s: how long the node may take to answer a look, a second at least; None:
                until the timeout, and for one look as long as connecting.
        """

    def locate(self, address: int, timeout_s: float) -> RegionInfo:
        """Find the region that holds ``address``; AddressRangeError when none does."""

    def free(self, address: int, timeout_s: float) -> None:
        """Free the region that begins at ``address``; RegionFreedError if it was freed."""

    def regions(self, timeout_s: float) -> list[RegionInfo]:
        """List the live regions, by address."""

    def stats(self, timeout_s: float) -> dict[str, Any]:
        """Return the node's own figures."""

    def close(self) -> None:
        """Say goodbye and let go. Idempotent."""

    def abandon(self) -> None:
        """Let go after a fork, in the child: send nothing."""
