"""tcp and ipc over ZeroMQ: one DEALER socket, without an identity and without lingering.

Identity is in our own header: ZeroMQ delivers nothing to a second socket of the same routing
id, and old messages to a restarted node. So a reconnect is a fresh socket.

Large frames go out from the caller's memory (a copy would cost a third of the bandwidth of
tcp on one host). Closing is asynchronous: a thread of ZeroMQ goes on reading that memory for a
moment, and ``is_released`` tells when that is over. pyzmq learns of it in a thread of its own,
which is started when the first transport is made: a signal that interrupts its start cannot
lose a frame then, because none is sent yet. Before each such frame pyzmq asks whether that
thread is alive; an interrupt of ``Thread.is_alive`` would make the answer no for good (CPython
3.11), and pyzmq would start a second thread at the address of the first. Here the thread tells
whether it was started. That is enough: pyzmq forgets a thread that it stops, and knows a forked
child by its pid.

Names are resolved in the background, again and again, and nobody is told when that fails: a
node may get its name later than its clients begin to look for it. ``why_unresolved`` finds out.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import zmq
from zmq.utils.garbage import GarbageCollectorThread, gc

from smbox.errors import ConnectError, TransportError
from smbox.keys import ClientKey
from smbox.wire.header import Buffer

LENT_NBYTES_MIN: Final = 256 * 1024
"""Smaller frames are copied: lending wakes a thread of pyzmq for each. At 64 KiB, pyzmq's own
threshold, batches of 4 KiB were a fifth slower and single frames as fast."""

FRAME_NBYTES_MAX: Final = 64 << 20
"""A peer that announces more is not a memory node."""

HEAP_BLOCK_NBYTES: Final = (32 << 20) - (64 << 10)
"""Just below the largest block from which glibc learns."""

LOOK_UP_S: Final = 0.5
"""How long a name server may take; a slower one is no reason to keep an error waiting."""

RECONNECT_FIRST_MS: Final = 50
RECONNECT_LAST_MS: Final = 1000

# Plain numbers: pyzmq's enums cost more than the sending.
_NOW: Final = int(zmq.NOBLOCK)
_NOW_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def learn_large_blocks() -> None:
    """Let the C library see that large blocks come and go: memory of one reply serves the next.

    glibc gives a large block back to the system when it is freed, unless blocks of its size
    were freed before: the sizes from which it does so, and at which it trims, grow with what it
    sees (mallopt(3), "the dynamic mmap threshold"). A program that works with arrays gets there
    by itself; in another, each MiB that ZeroMQ receives costs some 80 page faults, which made a
    get over tcp a quarter slower (530 against 420 us a MiB). It is glibc's own rule that is
    used, in some microseconds and without touching a page: with another C library nothing
    happens.
    """
    with contextlib.suppress(MemoryError):  # it would have been a little faster
        np.empty(HEAP_BLOCK_NBYTES, np.uint8)


def why_unresolved(address: str) -> str | None:
    """Tell why the host of ``tcp://host:port`` has no address; None if it has one, or may."""
    if not address.startswith("tcp://"):
        return None
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    reasons: list[str] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            reasons.append(getattr(error, "strerror", None) or str(error))

    thread = threading.Thread(target=look_up, name="smbox-look-up", daemon=True)
    thread.start()
    thread.join(LOOK_UP_S)
    return reasons[0] if reasons else None


def own_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return this process's own context; a forked child never uses its parent's."""
    pid = os.getpid()
    if pid not in _contexts:
        learn_large_blocks()
        gc.refs.pop(gc.store(None), None)  # starts pyzmq's thread
        made = zmq.Context()
        if _contexts.setdefault(pid, made) is not made:  # another thread was first
            made.term()
    return _contexts[pid]


def _renew_lock() -> None:
    """Free a forked child of a lock that another thread of its parent held."""
    gc._lock = threading.Lock()  # noqa: SLF001 -- pyzmq makes it once, and a child keeps it


os.register_at_fork(after_in_child=_renew_lock)


def _is_started(thread: threading.Thread) -> bool:
    return thread.ident is not None


GarbageCollectorThread.is_alive = _is_started  # type: ignore[assignment,method-assign]


def demand_node(socket: zmq.Socket[bytes], key: ClientKey) -> None:
    """Encrypt a connection, show the client's key, and refuse every node but the key's."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, key.node.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())


class ZmqTransport:
    """A DEALER socket that is connected, or will be as soon as the node is there.

    Args:
        address: ``tcp://host:port`` or ``ipc://path``.
        queue_max: messages that may wait in either direction; more are refused by ``send``,
            or left with the peer.
        key: of this client, for a node that asks for one.

    Raises:
        ConnectError: ZeroMQ cannot make such a connection at all.
    """

    def __init__(self, address: str, *, queue_max: int, key: ClientKey | None = None) -> None:
        self.address = address
        self._receive_ms = -2  # no value of ZeroMQ's: the first receive sets it
        self._lent: deque[zmq.MessageTracker] = deque()
        self._socket = own_context().socket(zmq.DEALER)
        try:
            self._configure(queue_max)
            if key is not None:
                demand_node(self._socket, key)
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            raise ConnectError(
                f"cannot connect: {zmq.strerror(error.errno or 0)}; is the address right?",
                address=address,
            ) from error

    def _configure(self, queue_max: int) -> None:
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, queue_max),
            (zmq.RCVHWM, queue_max),
            (zmq.IPV6, 1),
            (zmq.RECONNECT_IVL, RECONNECT_FIRST_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_LAST_MS),
            (zmq.MAXMSGSIZE, FRAME_NBYTES_MAX),
        ):
            self._socket.setsockopt(option, value)

    def send(self, frames: Sequence[Buffer], *, zero_copy: bool = False) -> bool:
        """Send one message, or return False when there is no room."""
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                flags = _NOW_MORE if index < last else _NOW
                if zero_copy and index and len(frame) >= LENT_NBYTES_MIN:
                    self._lend(frame, flags)
                else:
                    self._socket.send(frame, flags)
        except zmq.Again:
            return False  # ZeroMQ has room for all frames of a message, or for none
        except zmq.ZMQError as error:
            raise TransportError("cannot send", address=self.address) from error
        return True

    def _lend(self, frame: Buffer, flags: int) -> None:
        tracker = self._socket.send(frame, flags, copy=False, track=True)
        while self._lent and self._lent[0].done:
            self._lent.popleft()
        self._lent.append(tracker)

    def receive(self, timeout_s: float) -> list[Buffer] | None:
        """Return the next message, or None after ``timeout_s``."""
        receive_ms = max(0, min(int(timeout_s * 1000), 3_600_000))
        try:
            # ZeroMQ's own waiting is half as long as a poll and a receive.
            if receive_ms != self._receive_ms:
                self._socket.setsockopt(zmq.RCVTIMEO, receive_ms)
                self._receive_ms = receive_ms
            frame = self._socket.recv(copy=False)
            frames: list[Buffer] = [frame.buffer]
            while frame.more:
                frame = self._socket.recv(copy=False)
                frames.append(frame.buffer)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise TransportError("cannot receive", address=self.address) from error
        return frames

    def close(self) -> None:
        """Close without lingering, and without waiting."""
        self._socket.close(linger=0)

    def is_released(self) -> bool:
        """Tell whether ZeroMQ has let go of all frames that were sent without a copy."""
        return all(tracker.done for tracker in self._lent)

    def abandon(self) -> None:
        """Forget the socket in a forked child; pyzmq leaves the parent's alone."""
        self._lent.clear()
        self._socket.close()
