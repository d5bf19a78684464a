"""The path of a client anywhere: messages to the node, over one link for each thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from numpy.typing import NDArray

from smbox.config import ClientConfig
from smbox.errors import PeerLostError, SmboxError
from smbox.memory import accel
from smbox.memory.kernels import KernelCode
from smbox.paths.base import BatchItem, Bytes, Operation, RegionInfo, Sink, Work
from smbox.paths.lent_read import LentRead, Restless
from smbox.paths.link import Link
from smbox.paths.remote_batch import RemoteBatch
from smbox.paths.remote_call import RemoteCall, RemoteWait
from smbox.paths.remote_now import change_now, is_lone, read_now
from smbox.paths.remote_special import RemoteSpecial
from smbox.paths.remote_work import RemoteChange, RemoteRead, RemoteWork
from smbox.paths.streamed_read import StreamedRead
from smbox.wire.codec import Request
from smbox.wire.ops import Op

W = TypeVar("W", bound=RemoteWork)

OpenLink: TypeAlias = Callable[[int], Link]
"""Makes the link of a channel, given the channel's number; nothing is sent yet."""

CONTROL_CHANNEL = 0


class RemotePath:
    """DataPath over messages; docs/memory_model.md is its contract.

    The link of a thread that has ended goes to the next new thread.

    Args:
        transport: how the messages travel: "tcp", "ipc" or "inproc".
        open_link: makes links; channels count from 1.
        config: how long ``version`` waits for its answer, and which reads are of copies.
    """

    def __init__(self, transport: str, open_link: OpenLink, config: ClientConfig) -> None:
        self.transport = transport
        self._open_link = open_link
        self._timeout_s = config.timeout_s
        self._channels = itertools.count(CONTROL_CHANNEL + 1)
        self._links: list[Link] = []
        self._mutex = threading.RLock()
        self._mine = threading.local()
        self._is_closed = False
        self._restless = Restless(config.lend_from_nbytes)
        self.special = RemoteSpecial(self._link, _begun)

    def change_now(
        self, info: RegionInfo, operation: Operation, sink: Sink | None = None
    ) -> Work | None:
        """Begin a change; a small one is done at once, if nothing is in line. See DataPath."""
        if sink is None and is_lone(operation.first, operation.limit):
            return change_now(self._link(), info, operation)
        return self.change(info, operation, sink)

    def read_now(self, info: RegionInfo, first: int, limit: int, out: Bytes) -> Work | None:
        """Make a read; a small one is done at once, if nothing is in line. See DataPath."""
        link = self._link()
        if self._restless.may_lend(info, limit - first):
            return StreamedRead(link, info, first, limit, out, self._restless)
        if is_lone(first, limit):
            return read_now(link, info, first, limit, out)
        return _begun(link, RemoteRead(link, info, first, limit, out))

    def change(self, info: RegionInfo, operation: Operation, sink: Sink | None) -> Work:
        """Begin a change; see DataPath."""
        if operation.kernel == KernelCode.ELASTIC:
            # Here: its sink runs where an interrupt leaves two seconds; loading may take more.
            accel.prepare(operation.limit - operation.first)
        link = self._link()
        return _begun(link, RemoteChange(link, info, operation, sink))

    def read(self, info: RegionInfo, first: int, limit: int, out: Bytes) -> Work:
        """Begin a read; see DataPath."""
        link = self._link()
        if self._restless.may_lend(info, limit - first):
            return _begun(link, LentRead(link, info, first, limit, out, self._restless))
        return _begun(link, RemoteRead(link, info, first, limit, out))

    def batch(self, items: Sequence[BatchItem]) -> Work:
        """Begin many changes; see DataPath."""
        link = self._link()
        return _begun(link, RemoteBatch(link, items))

    def version(self, info: RegionInfo, timeout_s: float | None = None) -> int:
        """Ask for the region's version.

        Raises:
            RegionFreedError: the region was freed.
            RequestTimeoutError: no answer in time.
        """
        request = Request(Op.WAIT, address=int(info.address))  # reached at once
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        return RemoteCall(self._link(), request).reply(wait_s).version

    def wait_version(self, info: RegionInfo, version: int) -> Work:
        """Begin to wait for a version; see DataPath."""
        return RemoteWait(self._link(), info, version)

    def view(self, info: RegionInfo) -> NDArray[Any] | None:  # noqa: ARG002 - never mapped
        """Return None: the memory is elsewhere."""
        return None

    def flush(self, deadline_s: float) -> bool:
        """Drive what every thread has in line; see DataPath."""
        is_complete = True
        first_error: SmboxError | None = None
        for link in self._all_links():
            try:
                is_complete = link.drain(deadline_s) and is_complete
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return is_complete

    def close(self) -> None:
        """Say goodbye on every link and close it."""
        with self._mutex:
            self._is_closed = True
            links, self._links = self._links, []
            self._mine = threading.local()
        for link in links:
            link.close()

    def abandon(self) -> None:
        """Drop the sockets in a forked child; the parent's connections live on."""
        self._is_closed = True
        self._mutex = threading.RLock()
        links, self._links = self._links, []
        self._mine = threading.local()
        for link in links:
            link.abandon()

    def _link(self) -> Link:
        try:
            link: Link = self._mine.link
        except AttributeError:
            link = self._mine.link = self._new_link()
        return self._inner_link() if link.is_entered else link

    def _inner_link(self) -> Link:
        """Return another link for a signal handler that struck inside a call on this one."""
        mine = threading.current_thread()
        for link in self._all_links():
            if link.thread is mine and not link.is_entered:
                return link
        return self._new_link()

    def _new_link(self) -> Link:
        with self._mutex:
            if self._is_closed:
                raise PeerLostError("the box is closed", outcome="not-sent")
            for link in self._links:
                if link.is_left:
                    link.thread = threading.current_thread()
                    return link
            link = self._open_link(next(self._channels))
            self._links.append(link)
            return link

    def _all_links(self) -> list[Link]:
        with self._mutex:
            return list(self._links)


def _begun(link: Link, work: W) -> W:
    """Put a work in line; one that nobody will ever know of is taken out again."""
    if not work.is_done:
        try:
            link.begin(work)
        except BaseException:
            work.cancel()
            raise
    return work
