"""Client side of the limits: the maximum rates of plain TCP and bare ZeroMQ on this host."""

from __future__ import annotations

import socket
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

    It moves the same bytes as smbox does: out of the caller's array into one of the peer's,
    and back; no locks, no journal, no numbers.

    Args:
        port: of the peer on this host.
    """

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(f"tcp://127.0.0.1:{port}")

    def get(self, out: Bytes) -> None:
        """Fetch ``out.nbytes`` into ``out``, as frames of at most 1 MiB."""
        self._stream(peer.SEND, out.nbytes, None, out)

    def put(self, source: Bytes) -> None:
        """Send ``source`` as frames of at most 1 MiB; each is answered by a header."""
        self._stream(peer.TAKE, source.nbytes, source, None)

    def exchange(self, source: Bytes, out: Bytes) -> None:
        """Send ``source`` as frames of at most 1 MiB; each comes back, into ``out``."""
        self._stream(peer.BOTH, source.nbytes, source, out)

    def _stream(
        self, what: bytes, nbytes: int, source: Bytes | None, out: Bytes | None
    ) -> None:
        steps = list(range(0, nbytes, peer.FRAME_NBYTES))
        sent = answered = 0
        while answered < len(steps):
            while sent < len(steps) and sent - answered < WINDOW:
                place = _place(steps[sent], nbytes)
                header = peer.frame_header(what, place.start, place.stop - place.start)
                frames: list[bytes | memoryview] = [header]
                if source is not None:
                    frames.append(source.data[place])
                self._dealer.send_multipart(frames, copy=False)
                sent += 1
            reply = self._dealer.recv_multipart(copy=False)
            if out is not None:
                out.data[_place(steps[answered], nbytes)] = reply[1].buffer
            answered += 1

    def close(self) -> None:
        """Close the socket and its context."""
        self._dealer.close(linger=0)
        self._context.term()


def _place(at: int, nbytes: int) -> slice:
    return slice(at, min(at + peer.FRAME_NBYTES, nbytes))
