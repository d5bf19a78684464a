"""The path of a client anywhere: messages to the node, over one channel for each thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, Final

from smbox.client.calls import Call, VersionWait
from smbox.client.changes import Batch, Change, FromChange, SignalledChange
from smbox.client.channel import Channel
from smbox.client.long_read import LongRead, Restless
from smbox.client.reads import Dot, Gather, Read, SnapshotRead
from smbox.client.transfer import Transfer
from smbox.config import ClientConfig
from smbox.errors import PeerLostError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.readings import Product, Reading, RowsReading, Snapshot, Wanted
from smbox.paths.sinks import Bytes
from smbox.paths.threads import ThreadedPath
from smbox.paths.work import Changes, Copying, Operation, RegionInfo, Signalled
from smbox.wire.ops import Op, count
from smbox.work import Work

OpenChannel = Callable[[int], Channel]
"""Makes a channel, given its number; nothing is sent yet."""

CONTROL_CHANNEL: Final = 0

_TRANSFERS: Final[dict[type, Callable[[Channel, Any], Transfer]]] = {
    Operation: Change,
    Signalled: SignalledChange,
    Copying: FromChange,
    Changes: Batch,
    Reading: Read,
    Snapshot: SnapshotRead,
    RowsReading: Gather,
    Product: Dot,
}


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

    def start(self, wanted: Wanted) -> Work:
        """Describe a change or a read; see LocalPath."""
        if wanted.first == wanted.limit and wanted.info is not None:
            return self.wait_version(wanted.info, 0)
        channel = self._half()
        if isinstance(wanted, Reading) and self._restless.lends(wanted):
            return LongRead(channel, wanted, self._restless)
        kind = _TRANSFERS[type(wanted)]
        if kind is SnapshotRead and count(wanted.first, wanted.limit, STRIPE_NBYTES) == 1:
            kind = Read  # a stripe is of one moment
        return kind(channel, wanted)

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
