"""Process of a node: the event loop with its sockets, clock, signals and wakeup pipe."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Final

import zmq

from memnode.access import Access, ZapHandler
from memnode.config import NodeConfig
from memnode.context import Connection
from memnode.listener import Listener
from memnode.node import Node, Outgoing
from smbox.errors import ConfigError
from smbox.keys import read_node_key
from smbox.memory import layout
from smbox.memory.node_memory import NodeMemory, used_nbytes
from smbox.memory.segment import listing, room_nbytes

MEMORY_SHARE: Final = 0.9
"""Share of the free space of /dev/shm that a node without a memory limit takes."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_READ_NBYTES: Final = 4096

_LOG = logging.getLogger(__name__)


class Wakeup:
    """Wakes a poll: by a pipe, by a signal to stop, or when a watched process ends.

    The garbage collector closes it, because other threads may still call ``wake``.

    Attributes:
        fds: descriptors to poll; call ``handle`` with each that is readable.
        is_stopping: a signal to stop has arrived, or the parent has ended.

    Args:
        parent_pid: stop when this process ends; None: never. It may be another process than the
            parent, so PR_SET_PDEATHSIG, which follows the thread that forked, does not suffice.

    Raises:
        ConfigError: the process does not exist, or cannot be watched.
    """

    def __init__(self, parent_pid: int | None = None) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.fds = [self._read_fd]
        self.is_stopping = False
        self._parent_pid, self._parent_fd = parent_pid, -1
        if parent_pid is not None:
            try:
                self._parent_fd = self.watch(parent_pid)
            except (OSError, OverflowError) as error:
                message = f"cannot watch the parent process of the node: {error}"
                raise ConfigError(message, parent_pid=parent_pid) from None

    def __del__(self) -> None:
        for fd in (self._write_fd, *self.fds):
            os.close(fd)

    @contextmanager
    def catching_signals(self) -> Iterator[None]:
        """Catch the signals to stop in this block; only in the main thread."""
        former = {each: signal.signal(each, self._stop) for each in STOP_SIGNALS}
        wakeup_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_fd)
            for each, handler in former.items():
                signal.signal(each, handler)

    def watch(self, pid: int) -> int:
        """Also wake the poll when a process ends; return the descriptor for that."""
        self.fds.append(os.pidfd_open(pid))
        return self.fds[-1]

    def wake(self) -> None:
        """Wake the poll, from any thread."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full, and so readable
            os.write(self._write_fd, b"\0")

    def handle(self, fd: int) -> None:
        """Handle a readable descriptor; ignore one that is neither the pipe nor the parent."""
        if fd == self._read_fd:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, _READ_NBYTES)
        elif fd == self._parent_fd:
            _LOG.warning("stopping: the parent process %d has ended", self._parent_pid)
            self.is_stopping = True

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.is_stopping = True


class NodeServer:
    """A node with its sockets.

    Attributes:
        name: of the node; set by ``opened``.
        addresses: where it listens, with the actual ports.

    Args:
        config: of the node.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.name = ""
        self.addresses: list[str] = []
        self._listeners: list[Listener] = []
        self._wakeup = Wakeup(config.parent_pid)
        self._node: Node | None = None
        self._access = Access(config.keys)
        self._zap: ZapHandler | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the memory and bind the addresses; release both at the end.

        A clean end removes the memory, unless the configuration keeps it. After an exception
        the memory stays in place, as after a kill. Recovery ends before the node serves.

        Raises:
            NodeOwnedError: a running node owns the memory; nothing was changed.
            SegmentError: the memory cannot be trusted; nothing was changed.
            SystemLimitError: a segment cannot be opened at present; none is lost.
            OutOfMemoryError: not enough memory for a node.
            ConnectError: an address cannot be bound; the memory is unchanged.
        """
        _raise_file_limit()
        with ExitStack() as stack:
            stack.enter_context(self._wakeup.catching_signals())
            memory, self._node = self._open(stack)
            try:
                with contextlib.closing(self._node):
                    yield
            except BaseException:
                memory.release()
                raise
            memory.close(keep=self.config.keep)

    def run(self) -> None:
        """Serve until a signal comes or the parent ends."""
        node = self._node
        assert node is not None, "call run inside opened"
        handlers: dict[zmq.Socket[bytes] | int, Callable[[], object]] = {
            fd: partial(self._wakeup.handle, fd) for fd in self._wakeup.fds
        }
        for index, listener in enumerate(self._listeners):
            handlers[listener.socket] = partial(self._receive, node, index)
        if (zap := self._zap) is not None:
            handlers[zap.socket] = lambda: zap.answer(time.monotonic())
        sources = [(source, int(zmq.POLLIN)) for source in handlers]
        ended_s, tick_s, poll_s = -math.inf, 0.0, 0.0
        while not self._wakeup.is_stopping:
            now_s = time.monotonic()
            left_s = ended_s + (poll_s if node.is_idle else tick_s) - now_s
            if left_s <= 0.0:
                self._tick(node)
                ended_s = time.monotonic()
                left_s = poll_s = node.poll_s
                # Messages have as much time as the tick took: it may have walked many WAITs.
                tick_s = ended_s - now_s if poll_s else 0.0
            # zmq.Poller instead would add a sixth to the time of a small request in this loop.
            for source, _ in zmq.zmq_poll(sources, math.ceil(left_s * 1000)):
                handlers[source]()  # one message: to try a second costs more than a poll

    def _open(self, stack: ExitStack) -> tuple[NodeMemory, Node]:
        """Determine the name, open the memory and bind the addresses.

        A free port must be bound before it can be the name. Otherwise the memory is opened
        first, so that a second node of the same name never touches the first one's ipc path.
        """
        name = self.config.known_name
        if name is None:
            self._listen(stack)
            name = _fresh_name(self.addresses[0].rpartition(":")[2])
        self.name = name
        memory = NodeMemory.open(name, self._memory_nbytes(name), self.config.node_id)
        try:
            if not self._listeners:
                self._listen(stack)
            listeners = enumerate(self._listeners)
            return memory, Node(
                memory,
                now_s=time.monotonic(),
                open_binds=frozenset(index for index, each in listeners if each.is_open),
                access=self._access,
                is_connected=self._is_connected,
                wake=self._wakeup.wake,
            )
        except BaseException:
            memory.abandon()
            raise

    def _is_connected(self, connection: Connection) -> bool:
        index, peer = connection
        return self._listeners[index].is_connected(peer)

    def _receive(self, node: Node, index: int) -> None:
        received = self._listeners[index].receive()
        if received is None:
            return
        peer, frames, user = received
        connection: Connection = (index, peer)
        try:
            outgoing = node.receive(connection, frames, now_s=time.monotonic(), user=user)
        except Exception:  # noqa: BLE001 -- a message must not end the node
            _LOG.exception("cannot handle a message")
            return
        self._send(node, outgoing)

    def _tick(self, node: Node) -> None:
        try:
            outgoing = node.tick(now_s=time.monotonic())
        except Exception:  # noqa: BLE001 -- one client's error must not hurt others
            _LOG.exception("cannot run parked requests")
            return
        self._send(node, outgoing)

    def _send(self, node: Node, outgoing: Outgoing) -> None:
        for (index, peer), frames in outgoing:
            if not self._listeners[index].send(peer, frames):
                node.context.metrics.replies_dropped += 1

    def _listen(self, stack: ExitStack) -> None:
        context = zmq.Context()
        stack.callback(context.term)
        keys = None
        if self.config.keys is not None:
            keys = read_node_key(self.config.keys)
            self._zap = ZapHandler(context, self._access, time.monotonic())
            stack.callback(self._zap.close)
        for bind in self.config.binds:
            listener = Listener(context, bind, keys if bind.scheme == "tcp" else None)
            stack.callback(listener.close)
            self._listeners.append(listener)
            self.addresses.append(listener.address)
            if self.config.insecure and not bind.is_private:
                _LOG.warning(
                    "INSECURE: any client that reaches %s may read and write all memory of this"
                    " node; nothing is encrypted",
                    listener.address,
                )

    def _memory_nbytes(self, name: str) -> int:
        limit_nbytes = self.config.memory_nbytes or default_memory(name)
        room = used_nbytes(name) + room_nbytes()
        if limit_nbytes > room:
            _LOG.warning(
                "the memory limit is %d bytes, but /dev/shm has room for %d: clients get"
                " OutOfMemoryError there; lower --memory, or enlarge /dev/shm (mount -o"
                " remount,size=..., docker run --shm-size=...)",
                limit_nbytes,
                room,
            )
        return limit_nbytes


def default_memory(name: str | None, count: int = 1) -> int:
    """Return the memory limit of each of ``count`` nodes that start together without one.

    Each has an equal share of what is free, and its memory of an earlier run.
    """
    share_nbytes = int(room_nbytes() * MEMORY_SHARE) // count
    return share_nbytes if name is None else share_nbytes + used_nbytes(name)


def _fresh_name(port: str) -> str:
    """Return the name of a node with this port; it must not be the name of old memory."""
    is_taken = bool(listing(layout.name_of(port, "node")))
    return f"{port}-{os.getpid()}" if is_taken else port


def _raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: each connection is an open file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # then the limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
