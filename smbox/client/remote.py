"""RemotePath: the data path over messages, with one channel for each thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from smbox.client.changes import Batch, Change, SignalledChange
from smbox.client.channel import Channel
from smbox.client.reads import Dot, Gather, Read, SnapshotRead, ZeroCopyRead
from smbox.client.transfer import Call, Transfer
from smbox.config import ClientConfig, scheme_of
from smbox.deadline import left_s
from smbox.errors import RequestTimeoutError
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.paths import requests
from smbox.paths.sinks import Bytes
from smbox.paths.threads import ThreadedPath
from smbox.wire.header import STAMPED_NBYTES_MAX
from smbox.wire.ops import Op, count
from smbox.work import Work

OpenChannel = Callable[[int], Channel]
"""Makes a channel, given its number; nothing is sent yet."""

CONTROL_CHANNEL: Final = 0

WAIT_MS: Final = 500
"""How long one WAIT may be parked: less than the usual reply timeout of a channel (1 s), or an
unchanged region would look like a silent node."""

POLL_MS: Final = 20
"""The same for a caller that polls."""

VERSION_MAX: Final = (1 << 64) - 1
"""The largest version that a header can carry; no region ever reaches it."""

COPIED_READS: Final = 16
"""Number of reads that request copies after a zero-copy read of a contended region."""

TORN_SHARE_MAX: Final = 1 / 8
"""Largest share of torn pieces, each read twice, at which zero-copy reads pay off: a copy costs
the node a third."""

_TRANSFERS: Final[dict[type, Callable[[Channel, Any], Transfer]]] = {
    requests.Operation: Change,
    requests.Signalled: SignalledChange,
    requests.Copying: Change,
    requests.Changes: Batch,
    requests.Reading: Read,
    requests.Snapshot: SnapshotRead,
    requests.RowsReading: Gather,
    requests.Product: Dot,
}


class ContendedRegions:
    """Regions that change so often that zero-copy reads of them fail.

    Args:
        lend_from_nbytes: shorter reads always request copies.
    """

    def __init__(self, lend_from_nbytes: float) -> None:
        self._lend_from_nbytes = lend_from_nbytes
        self._copied_reads: dict[int, int] = {}  # number of reads left, by address

    def allows_zero_copy(self, reading: requests.Reading) -> bool:
        """Return True if a read may go without a copy; called once before each read."""
        info, nbytes = reading.info, reading.limit - reading.first
        left = self._copied_reads.pop(int(info.address), 0)
        if left > 1:
            self._copied_reads[int(info.address)] = left - 1
        return (
            not (left or reading.operand)
            and self._lend_from_nbytes <= nbytes <= STAMPED_NBYTES_MAX
            and info.consistency == Consistency.STRIPE  # others have no stamps
        )

    def note_torn(self, info: requests.RegionInfo, torn: int, count: int) -> None:
        """Note that ``torn`` of ``count`` pieces had to be read again."""
        if torn > TORN_SHARE_MAX * count:
            self._copied_reads[int(info.address)] = COPIED_READS


class RemotePath(ThreadedPath[Channel]):
    """The data path over messages; docs/memory_model.md is its contract.

    Attributes:
        transport: how the messages travel: "tcp", "ipc" or "inproc".

    Args:
        open_channel: makes a channel of a given number, from 1 on.
        config: the node's address, and the size of zero-copy reads.
    """

    def __init__(self, open_channel: OpenChannel, config: ClientConfig) -> None:
        super().__init__()
        self.transport = scheme_of(config.address)
        self._open_channel = open_channel
        self._numbers = itertools.count(CONTROL_CHANNEL + 1)
        self._contended = ContendedRegions(config.lend_from_nbytes)

    def start(self, request: requests.PathRequest) -> Work:
        """Return a change or a read as a request, not begun; see LocalPath."""
        if request.first == request.limit and request.info is not None:
            return self.wait_version(request.info, 0)
        channel = self._queue()
        if type(request) is requests.Reading and self._contended.allows_zero_copy(request):
            note_torn = partial(self._contended.note_torn, request.info)
            return ZeroCopyRead(channel, request, note_torn)
        kind = _TRANSFERS[type(request)]
        if kind is SnapshotRead and count(request.first, request.limit, STRIPE_NBYTES) == 1:
            kind = Read  # a stripe is of one moment
        return kind(channel, request)

    def version(self, info: requests.RegionInfo, timeout_s: float) -> int:
        """Request the region's version.

        Raises:
            RegionFreedError: the region was freed.
            RequestTimeoutError: no answer in time.
        """
        call = Call(self._queue(), Op.WAIT, address=int(info.address))  # reached at once
        return call.answer(timeout_s).version

    def wait_version(self, info: requests.RegionInfo, version: int) -> VersionWait:
        """Return a wait for a version; see LocalPath."""
        return VersionWait(self._queue(), info, version)

    def say_bye(self) -> None:
        """Say goodbye on all channels, which then wait for the replies together."""
        for channel in list(self._queues):
            channel.say_bye()

    def view(self, _info: requests.RegionInfo, _first: int, _limit: int) -> Bytes | None:
        """Return None: the memory is not mapped."""
        return None

    def _new_queue(self) -> Channel:
        for channel in list(self._queues):  # no mutex: another thread may use the channel
            if not (channel.thread.is_alive() or channel.is_idle):
                channel.move(time.monotonic())  # takes the replies that have come since
        return super()._new_queue()

    def _open_queue(self) -> Channel:
        return self._open_channel(next(self._numbers))


class VersionWait(Work):
    """A wait for a region's version by short WAIT requests, one after another.

    Attributes:
        found: the version in the last reply; -1: none yet.
    """

    def __init__(self, channel: Channel, info: requests.RegionInfo, version: int) -> None:
        self.found = -1
        self._channel = channel
        self._address = int(info.address)
        self._version = max(version, 0)  # one that no header can carry is never reached
        self._slice: Call | None = None

    def advance(self, deadline_s: float) -> bool:
        """Wait at the node until the version is there.

        Raises:
            RegionFreedError: the region was freed meanwhile.
        """
        while self.found < self._version:
            call = self._slice = self._slice or self._begin(deadline_s)
            with suppress(RequestTimeoutError):  # of the node: not reached within this WAIT
                if not call.advance(deadline_s):
                    return False
            self._slice = None
            if call.reply is not None:
                self.found = call.reply.version
            if time.monotonic() >= deadline_s:
                break
        return self.found >= self._version

    def _begin(self, deadline_s: float) -> Call:
        """Make a WAIT that ends by the deadline: other requests of the thread follow it."""
        wait_ms = int(min(WAIT_MS, 1000 * left_s(deadline_s))) or POLL_MS
        version = min(self._version, VERSION_MAX)
        return Call(
            self._channel, Op.WAIT, address=self._address, nbytes=wait_ms, version=version
        )

    def cancel(self) -> None:
        """Cancel the WAIT in flight."""
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None

    def facts(self) -> dict[str, object]:
        """Return the version that is waited for."""
        return {"wanted": self._version}
