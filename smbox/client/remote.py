"""The path of a client anywhere: messages to the node, over one channel for each thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from smbox.array import as_bytes
from smbox.client.changes import Batch, change_from, change_of
from smbox.client.channel import Channel
from smbox.client.long_read import LongRead, Restless
from smbox.client.reads import Dot, Gather, Read, Snapshot
from smbox.client.signalled import Signalled
from smbox.client.transfer import Call, VersionWait
from smbox.config import ClientConfig
from smbox.errors import PeerLostError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.work import (
    ByteRange,
    Bytes,
    Lease,
    Operation,
    RegionInfo,
    RowsWanted,
    Sums,
    Work,
    drain_all,
)
from smbox.wire import ops
from smbox.wire.ops import Op

OpenChannel = Callable[[int], Channel]
"""Makes a channel, given its number; nothing is sent yet."""

CONTROL_CHANNEL: Final = 0


class RemotePath:
    """DataPath over messages; docs/memory_model.md is its contract.

    The channel of a thread that has ended goes to the next new thread.

    Args:
        transport: how the messages travel: "tcp", "ipc" or "inproc".
        open_channel: makes channels; they count from 1.
        config: how long ``version`` waits for its answer, and which reads are of copies.
    """

    def __init__(self, transport: str, open_channel: OpenChannel, config: ClientConfig) -> None:
        self.transport = transport
        self._open_channel = open_channel
        self._timeout_s = config.timeout_s
        self._numbers = itertools.count(CONTROL_CHANNEL + 1)
        self._channels: list[Channel] = []
        self._lock = threading.RLock()  # a signal handler may begin a channel in a beginning
        self._mine = threading.local()
        self._is_closed = False
        self._restless = Restless(config.lend_from_nbytes)

    def read(
        self, info: RegionInfo, first: int, limit: int, out: NDArray[Any], operand: int = 0
    ) -> Work:
        """Describe a read; see DataPath."""
        if first == limit:
            return self.wait_version(info, 0)
        restless, channel = self._restless, self._channel()
        if not operand and restless.lends(info, limit - first):
            return LongRead(channel, info, (first, limit), as_bytes(out), restless)
        restless.note_copied(info)
        return Read(channel, info, (first, limit), as_bytes(out), operand)

    def change(self, operation: Operation) -> Work:
        """Describe a change; see DataPath."""
        if operation.first == operation.limit:
            return self.wait_version(operation.info, 0)
        return change_of(self._channel(), operation)

    def signalled(self, operation: Operation, signal: Operation) -> Work:
        """Describe a change with a signal; see DataPath."""
        channel = self._channel()
        return Signalled(channel, change_of(channel, operation), change_of(channel, signal))

    def change_from(self, operation: Operation, source: RegionInfo, source_first: int) -> Work:
        """Describe a change from another region; see DataPath."""
        return change_from(self._channel(), operation, source, source_first)

    def batch(self, operations: Sequence[Operation]) -> Work:
        """Describe many changes; see DataPath."""
        return Batch(self._channel(), operations)

    def gather(self, info: RegionInfo, wanted: RowsWanted) -> Work:
        """Describe a read of rows; see DataPath."""
        return Gather(self._channel(), info, wanted)

    def dot(
        self, info: RegionInfo, span: ByteRange, other: RegionInfo, begin: int, sums: Sums
    ) -> Work:
        """Describe a dot product; see DataPath."""
        return Dot(self._channel(), info, span, int(other.address) + begin, sums)

    def snapshot(
        self, info: RegionInfo, first: int, limit: int, out: Bytes, lease: Lease | None
    ) -> Work:
        """Describe a read of a range at one moment; see DataPath."""
        if lease is None:
            return Read(self._channel(), info, (first, limit), out)
        return Snapshot(self._channel(), info, (first, limit), out, lease)

    def stages_snapshots(self, first: int, limit: int) -> bool:
        """Tell whether more than one stripe has to be of one moment."""
        return ops.count(first, limit, STRIPE_NBYTES) > 1

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:
        """Ask for the region's version.

        Raises:
            RegionFreedError: the region was freed.
            RequestTimeoutError: no answer in time.
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        call = Call(self._channel(), Op.WAIT, address=int(info.address))  # reached at once
        return call.answer(wait_s).version

    def wait_version(self, info: RegionInfo, version: int) -> Work:
        """Begin to wait for a version; see DataPath."""
        return VersionWait(self._channel(), info, version)

    def view(self, info: RegionInfo) -> NDArray[Any] | None:  # noqa: ARG002 - never mapped
        """Return None: the memory is elsewhere."""
        return None

    def flush(self, deadline_s: float) -> bool:
        """Drive what every thread has under way; see DataPath."""
        return drain_all(self._all(), deadline_s)

    def close(self) -> None:
        """Say goodbye on every channel and close it."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, []
            self._mine = threading.local()
        for channel in channels:
            channel.close()

    def abandon(self) -> None:
        """Drop the sockets in a forked child; the parent's connections live on."""
        self._is_closed = True
        self._lock = threading.RLock()
        channels, self._channels = self._channels, []
        self._mine = threading.local()
        for channel in channels:
            channel.abandon()

    def _channel(self) -> Channel:
        try:
            channel: Channel = self._mine.channel
        except AttributeError:
            channel = self._mine.channel = self._new_channel()
        return channel

    def _new_channel(self) -> Channel:
        with self._lock:
            if self._is_closed:
                raise PeerLostError("the box is closed", outcome="none")
            for channel in self._channels:
                if channel.is_idle and not channel.thread.is_alive():
                    channel.thread = threading.current_thread()
                    return channel
            channel = self._open_channel(next(self._numbers))
            self._channels.append(channel)
            return channel

    def _all(self) -> list[Channel]:
        with self._lock:
            return list(self._channels)
