"""The path of a client anywhere: messages to the node, over one channel for each thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from smbox.array import as_bytes
from smbox.client.changes import Batch, Signalled, change_from, change_of
from smbox.client.channel import Channel
from smbox.client.long_read import LongRead, Restless
from smbox.client.reads import Dot, Gather, Read, Snapshot
from smbox.client.transfer import Call, VersionWait
from smbox.config import ClientConfig
from smbox.errors import PeerLostError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.threads import ThreadedPath
from smbox.paths.work import ByteRange, Bytes, Operation, RegionInfo, RowsWanted, Sums
from smbox.wire import ops
from smbox.wire.ops import Op
from smbox.work import Work

OpenChannel = Callable[[int], Channel]
"""Makes a channel, given its number; nothing is sent yet."""

CONTROL_CHANNEL: Final = 0


class RemotePath(ThreadedPath[Channel]):
    """The data path over messages; docs/memory_model.md is its contract.

    The channel of a thread that has ended goes to the next new thread.

    Args:
        transport: how the messages travel: "tcp", "ipc" or "inproc".
        open_channel: makes channels; they count from 1.
        config: how long ``version`` waits for its answer, and which reads are of copies.
    """

    def __init__(self, transport: str, open_channel: OpenChannel, config: ClientConfig) -> None:
        super().__init__()
        self.transport = transport
        self._open_channel = open_channel
        self._timeout_s = config.timeout_s
        self._numbers = itertools.count(CONTROL_CHANNEL + 1)
        self._restless = Restless(config.lend_from_nbytes)

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int = 0
    ) -> Work:
        """Describe a read; see LocalPath."""
        if first == limit:
            return self.wait_version(info, 0)
        restless, channel = self._restless, self._half()
        if not operand and restless.lends(info, limit - first):
            return LongRead(channel, info, (first, limit), as_bytes(out), restless)
        restless.note_copied(info)
        return Read(channel, info, (first, limit), as_bytes(out), operand)

    def change(self, operation: Operation) -> Work:
        """Describe a change; see LocalPath."""
        if operation.first == operation.limit:
            return self.wait_version(operation.info, 0)
        return change_of(self._half(), operation)

    def signalled(self, operation: Operation, signal: Operation) -> Work:
        """Describe a change with a signal; see LocalPath."""
        channel = self._half()
        return Signalled(channel, change_of(channel, operation), change_of(channel, signal))

    def change_from(self, operation: Operation, source: RegionInfo, source_first: int) -> Work:
        """Describe a change from another region; see LocalPath."""
        return change_from(self._half(), operation, source, source_first)

    def batch(self, operations: Sequence[Operation]) -> Work:
        """Describe many changes; see LocalPath."""
        return Batch(self._half(), operations)

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Describe a read of rows; see LocalPath."""
        return Gather(self._half(), info, wanted)

    def dot(
        self, info: RegionInfo, span: ByteRange, other: RegionInfo, begin: int, sums: Sums
    ) -> Work:
        """Describe a dot product; see LocalPath."""
        return Dot(self._half(), info, span, int(other.address) + begin, sums)

    def snapshot(self, info: RegionInfo, first: int, limit: int, out: Bytes) -> Work:
        """Describe a read of a range at one moment; see LocalPath."""
        is_whole = ops.count(first, limit, STRIPE_NBYTES) == 1  # a stripe is of one moment
        kind = Read if is_whole else Snapshot
        return kind(self._half(), info, (first, limit), out)

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:
        """Ask for the region's version.

        Raises:
            RegionFreedError: the region was freed.
            RequestTimeoutError: no answer in time.
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        call = Call(self._half(), Op.WAIT, address=int(info.address))  # reached at once
        return call.answer(wait_s).version

    def wait_version(self, info: RegionInfo, version: int) -> VersionWait:
        """Begin to wait for a version; see LocalPath."""
        return VersionWait(self._half(), info, version)

    def say_bye(self) -> None:
        """Say goodbye on all channels, so that they wait for the answers at the same time."""
        with self._mutex:
            channels = list(self._halves)
        for channel in channels:
            channel.say_bye()

    def view(self, _info: RegionInfo, _first: int, _limit: int) -> Bytes | None:
        """Return None: the memory is elsewhere."""
        return None

    def _new_half(self) -> Channel:
        with self._mutex:
            if self._is_closed:
                raise PeerLostError("the box is closed", outcome="none")
            for channel in self._halves:
                if channel.is_left:
                    channel.thread = threading.current_thread()
                    return channel
            channel = self._open_channel(next(self._numbers))
            self._halves.append(channel)
            return channel
