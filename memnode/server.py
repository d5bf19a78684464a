"""The process around a node: its one loop, with the sockets, the clock and the signals."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import zmq

from memnode.access import Access, ZapHandler
from memnode.config import NodeConfig
from memnode.context import Connection
from memnode.listener import Listener
from memnode.node import Node, Outgoing
from memnode.wakeup import Wakeup
from smbox.keys import read_node_key
from smbox.memory import layout
from smbox.memory.node_memory import NodeMemory
from smbox.memory.segment import listing, room_nbytes, size

MEMORY_SHARE: Final = 0.9
"""Of what /dev/shm has free, when no limit is given: others live there, too."""

_LOG = logging.getLogger(__name__)


class NodeServer:
    """A node that listens.

    Attributes:
        name: of the node; settled by ``opened``.
        addresses: where it listens, with the ports that it got.

    Args:
        config: what the node was told.
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
        """Take the memory and the addresses; on a clean end, give both back.

        The memory is removed then, unless it is to be kept. After an exception it stays in
        place, as it would after a kill. Nothing is served before all of it is recovered.

        Raises:
            NodeOwnedError: a living node owns the memory; nothing was changed.
            SegmentError: the memory cannot be trusted; nothing was changed.
            OutOfMemoryError: no room for a node.
            ConnectError: an address cannot be bound; the memory stays as it was.
        """
        _raise_file_limit()
        with ExitStack() as stack:
            stack.enter_context(self._wakeup.catching_signals())
            memory, self._node = self._own(stack)
            keep = True
            try:
                yield
                keep = self.config.keep
            finally:
                self._node.close()
                memory.close(keep=keep)

    def run(self) -> None:
        """Serve until a signal comes or the parent ends."""
        node = self._node
        assert node is not None, "run belongs inside opened"
        takers: dict[zmq.Socket[bytes] | int, Callable[[], object]] = {
            fd: partial(self._wakeup.hear, fd) for fd in self._wakeup.fds
        }
        for index, listener in enumerate(self._listeners):
            takers[listener.socket] = partial(self._take, node, index)
        if (zap := self._zap) is not None:
            takers[zap.socket] = lambda: zap.answer(time.monotonic())
        sources = [(source, int(zmq.POLLIN)) for source in takers]
        looked_s, patience_s = -math.inf, 0.0
        while not self._wakeup.is_over:
            now_s = time.monotonic()
            if now_s - looked_s >= patience_s or not node.is_at_rest:
                self._tick(node)
                looked_s, patience_s = now_s, node.patience_s
            # A Poller, which would do the same, adds a sixth to a small request's way in here.
            for source, _ in zmq.zmq_poll(sources, int(patience_s * 1000)):
                takers[source]()  # one message each: to ask for a second costs more than a poll

    def _own(self, stack: ExitStack) -> tuple[NodeMemory, Node]:
        """Settle the name, take the memory and the addresses.

        A port must be taken before it can be a name. Else the memory comes first, so that a
        second node of a name never touches the first one's ipc path.
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
                wake=self._wakeup.ring,
            )
        except BaseException:
            memory.abandon()
            raise

    def _is_connected(self, connection: Connection) -> bool:
        index, peer = connection
        return self._listeners[index].reaches(peer)

    def _take(self, node: Node, index: int) -> None:
        received = self._listeners[index].receive()
        if received is None:
            return
        peer, frames, user = received
        connection: Connection = (index, peer)
        try:
            outgoing = node.receive(connection, frames, now_s=time.monotonic(), user=user)
        except Exception:  # noqa: BLE001 -- no message may end the node
            _LOG.exception("a message could not be handled")
            return
        self._send(node, outgoing)

    def _tick(self, node: Node) -> None:
        try:
            outgoing = node.tick(now_s=time.monotonic())
        except Exception:  # noqa: BLE001 -- what goes wrong behind one client hurts no other
            _LOG.exception("what is parked could not be gone on with")
            return
        self._send(node, outgoing)

    def _send(self, node: Node, outgoing: Outgoing) -> None:
        for (index, peer), frames in outgoing:
            if not self._listeners[index].send(peer, frames):
                node.metrics.replies_dropped += 1

    def _listen(self, stack: ExitStack) -> None:
        context = zmq.Context()
        stack.callback(context.term)
        keys = None
        if self.config.keys is not None:
            keys = read_node_key(self.config.keys)
            self._zap = ZapHandler(context, self._access, time.monotonic())
            stack.callback(self._zap.close)
        for bind in self.config.binds:
            asked = keys if bind.scheme == "tcp" else None
            listener = Listener(context, bind, asked)
            stack.callback(listener.close)
            self._listeners.append(listener)
            self.addresses.append(listener.address)
            if not bind.is_private and asked is None:
                _LOG.warning(
                    "INSECURE: anybody who reaches %s may read and write all memory of this"
                    " node; nothing is encrypted",
                    listener.address,
                )

    def _memory_nbytes(self, name: str) -> int:
        if self.config.memory_nbytes is not None:
            return self.config.memory_nbytes
        used_nbytes = sum(map(size, listing(f"{layout.PREFIX}{name}.")))  # by an earlier run
        return used_nbytes + int(room_nbytes() * MEMORY_SHARE)


def _fresh_name(port: str) -> str:
    """Name a node after the port that it happened to get, but never adopt old memory."""
    taken = bool(listing(layout.node_name(port)))
    return f"{port}-{os.getpid()}" if taken else port


def _raise_file_limit() -> None:
    """Allow as many connections as the system lets a process have; each is an open file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a system that says no keeps its limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
