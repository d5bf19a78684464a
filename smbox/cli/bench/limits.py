"""The client's end of the limits: the fastest that plain TCP and bare ZeroMQ go here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

import numpy as np
import zmq
from numpy.typing import NDArray

from smbox.cli.bench import peer

CALL_NBYTES: Final = (256 * 1024, 512 * 1024, 1024 * 1024)
"""Sizes of a recv_into or send call; the best of them is the limit."""

WINDOW: Final = 16
"""Requests under way at once: as many as a smbox client keeps."""

Bytes = NDArray[np.uint8]


class RawStream:
    """One TCP connection that only moves bytes.

    Args:
        port: of the peer on this host.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, out: Bytes, call_nbytes: int) -> None:
        """Receive ``out.nbytes`` into ``out`` by calls for at most ``call_nbytes``."""
        self._socket.sendall(peer.REQUEST.pack(peer.SEND, out.nbytes, call_nbytes))
        view, at = out.data, 0
        while at < out.nbytes:
            at += self._socket.recv_into(view[at : at + call_nbytes])

    def put(self, source: Bytes, call_nbytes: int) -> None:
        """Send ``source`` in calls of ``call_nbytes`` and wait until it has arrived."""
        self._socket.sendall(peer.REQUEST.pack(peer.TAKE, source.nbytes, call_nbytes))
        view = source.data
        for at in range(0, source.nbytes, call_nbytes):
            self._socket.sendall(view[at : at + call_nbytes])
        self._socket.recv(1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class BareZmq:
    """A DEALER that keeps a window of 1 MiB requests under way, and does nothing else.

    Replies are not copied out of ZeroMQ's buffers: smbox has to, the limit does not.

    Args:
        port: of the peer on this host.
    """

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(f"tcp://127.0.0.1:{port}")

    def get(self, nbytes: int) -> None:
        """Fetch ``nbytes`` as frames of at most 1 MiB."""
        self._stream([_header(peer.SEND, step) for _, step in _steps(nbytes)], [])

    def put(self, source: Bytes) -> None:
        """Send ``source`` as frames of at most 1 MiB; each is answered by a header."""
        self._with_bodies(peer.TAKE, source)

    def exchange(self, source: Bytes) -> None:
        """Send ``source`` as frames of at most 1 MiB; each comes back."""
        self._with_bodies(peer.BOTH, source)

    def _with_bodies(self, what: bytes, source: Bytes) -> None:
        view = source.data
        steps = list(_steps(source.nbytes))
        self._stream(
            [_header(what, step) for _, step in steps],
            [view[at : at + step] for at, step in steps],
        )

    def _stream(self, headers: list[bytes], bodies: list[memoryview]) -> None:
        sent = answered = 0
        while answered < len(headers):
            while sent < len(headers) and sent - answered < WINDOW:
                frames: list[bytes | memoryview] = [headers[sent], *bodies[sent : sent + 1]]
                self._dealer.send_multipart(frames, copy=False)
                sent += 1
            self._dealer.recv_multipart(copy=False)
            answered += 1

    def close(self) -> None:
        """Close the socket and its context."""
        self._dealer.close(linger=0)
        self._context.term()


def _steps(nbytes: int) -> Iterator[tuple[int, int]]:
    for at in range(0, nbytes, peer.FRAME_NBYTES):
        yield at, min(peer.FRAME_NBYTES, nbytes - at)


def _header(what: bytes, nbytes: int) -> bytes:
    return (what.ljust(8, b"\0") + nbytes.to_bytes(8, "little")).ljust(
        peer.HEADER_NBYTES, b"\0"
    )
