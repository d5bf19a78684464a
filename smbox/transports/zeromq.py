"""Transport over ZeroMQ (tcp and ipc): one DEALER socket without a routing id or lingering.

The message header identifies the client. With routing ids, ZeroMQ would deliver nothing to a
second socket of the same id, and old messages to a restarted node. So a reconnect uses a new
socket.

Large frames are sent from the caller's memory; a copy would cost a third of the bandwidth of
tcp on one host. Closing is asynchronous: a thread of ZeroMQ may read that memory for a moment
longer, until ``is_released`` returns True. A thread of pyzmq receives the notification. It is
started with the first transport, before any frame is sent, so that a signal that interrupts the
start cannot lose a frame. Before each such frame pyzmq tests whether that thread is alive. An
interrupt of ``Thread.is_alive`` would make it return False forever (CPython 3.11), and pyzmq
would start a second thread at the address of the first. So this file replaces the test by
"was started". That is sufficient: pyzmq drops a thread that it stops, and recognises a forked
child by its pid.

ZeroMQ resolves host names in the background, repeatedly and without an error, because a node
may get its name after its clients have started. ``resolution_error`` reports the failure.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import zmq
from zmq.utils.garbage import GarbageCollectorThread, gc

from smbox.config import peer_of
from smbox.errors import ConnectError, TransportError
from smbox.keys import ClientKey
from smbox.limits import refusal, start_thread
from smbox.wire.header import Buffer

T = TypeVar("T")

LENT_NBYTES_MIN: Final = 256 * 1024
"""Smaller frames are copied: without a copy each frame wakes a thread of pyzmq. With 64 KiB,
pyzmq's own threshold, batches of 4 KiB were a fifth slower and single frames as fast."""

FRAME_NBYTES_MAX: Final = 64 << 20
"""ZeroMQ disconnects a peer that announces a longer frame: it is not a memory node."""

HEAP_BLOCK_NBYTES: Final = (32 << 20) - (64 << 10)
"""Just below the largest block that raises glibc's mmap threshold."""

RESOLVE_S: Final = 0.5
"""Seconds to wait for a name server; a slower one must not delay an error."""

FILES: Final = 16
THREADS: Final = 8
"""At least as many as ZeroMQ opens and starts first. Without one of them it aborts the process,
or pyzmq's thread ends and frees no frame."""

RECONNECT_FIRST_MS: Final = 50
RECONNECT_LAST_MS: Final = 1000

NOW: Final = int(zmq.NOBLOCK)
NOW_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain ints: pyzmq's flags are enums, and its functions for entire messages create more enums;
together these take twice the time that ZeroMQ needs for a small message."""

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def learn_large_blocks() -> None:
    """Raise glibc's mmap threshold, so that the memory of one reply is reused for the next.

    glibc returns a large block to the system when it is freed, unless blocks of its size were
    freed before: the mmap and trim thresholds grow with the freed blocks (mallopt(3), "the
    dynamic mmap threshold"). A program that works with arrays raises them anyway. In any other
    program each MiB that ZeroMQ receives costs some 80 page faults, which made a get over tcp a
    quarter slower (530 against 420 us a MiB). This call takes some microseconds and touches no
    page. With another C library it has no effect.
    """
    with contextlib.suppress(MemoryError):  # only an optimisation
        np.empty(HEAP_BLOCK_NBYTES, np.uint8)


def start_frame_thread(files: int = FILES) -> None:
    """Start the thread of pyzmq that frees sent frames, which otherwise starts in a send.

    A send that fails in the middle of a message breaks the messages after it.

    Args:
        files: number of files that ZeroMQ will need.

    Raises:
        SystemLimitError: too few files or threads can be had; ZeroMQ was not started.
    """
    _check_limits(files)
    start_thread(lambda: gc.refs.pop(gc.store(None), None))


def _check_limits(files: int) -> None:
    """Open as many files, and start as many threads, as ZeroMQ will need."""
    end, threads = threading.Lock(), list[threading.Thread]()

    def wait() -> None:
        with end:
            pass

    with contextlib.ExitStack() as stack:
        try:
            for _ in range(files):
                stack.enter_context(select.epoll())  # garbage collection closes it too
        except OSError as error:
            raise refusal("start ZeroMQ", error) from error
        with end:  # not an Event or a callback: Ctrl-C could prevent its end
            for _ in range(THREADS):
                thread = threading.Thread(target=wait, name="smbox-limits", daemon=True)
                start_thread(thread.start)
                threads.append(thread)
        for thread in threads:
            thread.join()


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of an address: a name stands for IPv4, in brackets for IPv6."""
    return socket.AF_INET6 if "[" in address else socket.AF_INET


def resolution_error(address: str) -> str | None:
    """Return why the host of ``tcp://host:port`` cannot be resolved, and what to do.

    Returns:
        None if it may be resolved.
    """
    if not address.startswith("tcp://"):
        return None

    def resolve() -> str | None:
        try:
            socket.getaddrinfo(peer_of(address)[0], None, family_of(address))
        except (socket.gaierror, UnicodeError) as error:
            return f"{error}; check its spelling; for an IPv6 address write tcp://[host]:port"
        except OSError as error:
            return str(refusal("look it up", error))
        return None

    return within(RESOLVE_S, resolve)


def within(timeout_s: float, function: Callable[[], T]) -> T | None:
    """Return what a function returns, or None after ``timeout_s``, when it goes on.

    A thread calls it: nothing ends the look-up of a host's name, which may take long.

    Raises:
        SystemLimitError: this process can have no more threads.
    """
    found: list[T] = []
    thread = threading.Thread(
        target=lambda: found.append(function()), name="smbox-resolve", daemon=True
    )
    start_thread(thread.start)
    thread.join(timeout_s)
    return found[0] if found else None


def process_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return the ZeroMQ context of this process; a forked child never uses its parent's."""
    pid = os.getpid()
    if pid not in _contexts:
        learn_large_blocks()
        start_frame_thread()
        context = zmq.Context()
        if _contexts.setdefault(pid, context) is not context:  # another thread was first
            context.term()
    return _contexts[pid]


def _replace_lock() -> None:
    """Replace pyzmq's lock in a forked child; a thread of the parent may have held it."""
    gc._lock = threading.Lock()  # noqa: SLF001 -- pyzmq creates it only once


os.register_at_fork(after_in_child=_replace_lock)


def _is_started(thread: threading.Thread) -> bool:
    return thread.ident is not None


GarbageCollectorThread.is_alive = _is_started  # type: ignore[assignment,method-assign]


def set_curve_keys(socket: zmq.Socket[bytes], key: ClientKey) -> None:
    """Set a socket's CURVE keys: the client's, and that of the only node it accepts."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, key.node.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())


class ZmqTransport:
    """A DEALER socket; it connects in the background as soon as the node listens.

    Args:
        address: ``tcp://host:port`` or ``ipc://path``.
        queue_max: messages that may be queued in each direction; ``send`` refuses more, and the
            peer keeps more.
        key: of this client, for a node that requires one.

    Raises:
        ConnectError: ZeroMQ does not accept the address, or has no more sockets.
        SystemLimitError: ZeroMQ cannot start.
    """

    def __init__(self, address: str, *, queue_max: int, key: ClientKey | None = None) -> None:
        self.address = address
        self._receive_ms = -2  # not a valid timeout: the first receive sets it
        self._lent: deque[zmq.MessageTracker] = deque()
        try:
            self._socket = process_context().socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise ConnectError(
                f"cannot open another socket: {error}; close unused boxes, or use fewer threads"
                " (ZeroMQ has 1023 sockets in a process), or raise `ulimit -n`",
                address=address,
            ) from error
        try:
            for option, value in (
                (zmq.LINGER, 0),
                (zmq.SNDHWM, queue_max),
                (zmq.RCVHWM, queue_max),
                (zmq.IPV6, int(family_of(address) == socket.AF_INET6)),
                (zmq.RECONNECT_IVL, RECONNECT_FIRST_MS),
                (zmq.RECONNECT_IVL_MAX, RECONNECT_LAST_MS),
                (zmq.MAXMSGSIZE, FRAME_NBYTES_MAX),
            ):
                self._socket.setsockopt(option, value)
            if key is not None:
                set_curve_keys(self._socket, key)
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            raise ConnectError(
                f"cannot connect: {error}; is the address right?", address=address
            ) from error

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send one message, large frames without a copy; return False if the queue is full."""
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                flags = NOW_MORE if index < last else NOW
                if len(frame) >= LENT_NBYTES_MIN:
                    while self._lent and self._lent[0].done:
                        self._lent.popleft()
                    self._lent.append(self._socket.send(frame, flags, copy=False, track=True))
                else:
                    self._socket.send(frame, flags)
        except zmq.Again:
            return False  # ZeroMQ queues all frames of a message, or none
        except zmq.ZMQError as error:
            raise TransportError(f"cannot send: {error}", address=self.address) from error
        return True

    def receive(self, timeout_s: float) -> list[Buffer] | None:
        """Return the next message, or None after ``timeout_s``."""
        receive_ms = max(0, min(int(timeout_s * 1000), 3_600_000))
        try:
            # A receive with a timeout takes half as long as a poll and a receive.
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
            raise TransportError(f"cannot receive: {error}", address=self.address) from error
        return frames

    def close(self) -> None:
        """Close the socket at once; unsent messages are discarded.

        In a forked child pyzmq does not touch the parent's socket.
        """
        self._socket.close(linger=0)

    def is_released(self) -> bool:
        """Return whether ZeroMQ has released all frames that were sent without a copy."""
        return all(tracker.done for tracker in self._lent)
