"""One listening ROUTER socket: frames in, frames out, never waiting for anybody.

ZeroMQ binds an ipc address over whatever file is there, and leaves its own behind: so the file
is looked at before, and removed after.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Sequence
from typing import Final

import zmq

from memnode.access import ZAP_DOMAIN
from memnode.config import Bind
from smbox.config import WINDOW_MAX
from smbox.errors import ConnectError
from smbox.keys import KeyPair
from smbox.transports.zeromq import why_unresolved
from smbox.wire.codec import Reply, encode_reply
from smbox.wire.header import LONG_NBYTES_MAX, Buffer
from smbox.wire.messages import Empty
from smbox.wire.ops import Op

COPY_BELOW_NBYTES: Final = 64 * 1024
"""Smaller frames are copied into ZeroMQ: handing over a buffer costs more than that."""

FRAME_NBYTES_MAX: Final = LONG_NBYTES_MAX + (1 << 20)
"""More than any request has, so that one that is a little too long is told why."""

LINGER_MS: Final = 500

QUEUE_MAX: Final = 2 * WINDOW_MAX
"""Replies that may wait for one peer. A client has at most a window of them, but ZeroMQ hears
of what the peer has read in steps of half the mark: at a mark of one window, replies of a full
window were dropped, and each cost the client the second that it waits before it asks again."""

RECEIVED_MAX: Final = 2 * WINDOW_MAX
"""Requests of one peer that ZeroMQ reads ahead; the others wait in the kernel's buffers. Each
time half as many were taken, its own thread is woken to read on: where the mark is 2, at every
request, a small put takes a tenth longer than at 8, and at 8 some hundredths longer than here.
What they bring together is kept small by the clients, as flow.py tells them."""

SKIPPED_MAX: Final = 4096
"""Frames too many that are dropped at a time: some milliseconds of work."""

HEARTBEAT_MS: Final = 20_000

NEXT_STEPS: Final = {
    errno.EADDRINUSE: "stop what listens there, or bind to another port (0: a free one)",
    errno.EADDRNOTAVAIL: "bind to an address of this host",
    errno.EACCES: "bind to a port from 1024 on, or to a path that you may write",
    errno.ENOENT: "make the folder of the path first",
}
"""What to do where an address cannot be bound."""

HANDSHAKE_MS: Final = 5_000
"""A connection that has shown no key by then is closed."""

UNASKED: Final = encode_reply(Reply(Op.PING, body=Empty()))
"""Clients ignore a reply to a request that they have not made."""

# Plain numbers: pyzmq's flags are enums, and its calls for whole messages make more of them;
# together they cost a small message twice what ZeroMQ itself does.
_NOW: Final = int(zmq.NOBLOCK)
_NOW_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class Listener:
    """A bound ROUTER socket.

    Attributes:
        address: where it listens, with the port that it got.
        is_open: its clients need not show that they share the host: they come with keys, or
            from other hosts.

    Args:
        context: of ZeroMQ.
        bind: where to listen.
        keys: the node's own, where clients come with keys; a ZapHandler judges those.

    Raises:
        ConnectError: the address cannot be bound; nothing is left.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], bind: Bind, keys: KeyPair | None = None
    ) -> None:
        self.bind = bind
        self._asks_keys = keys is not None
        self.is_open = self._asks_keys or not bind.is_private
        if bind.scheme == "ipc":
            check_free(bind.host, bind.address)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self.socket.setsockopt(zmq.SNDHWM, QUEUE_MAX)
        self.socket.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_NBYTES_MAX)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.socket.setsockopt(zmq.IPV6, int("[" in bind.host))
        if keys is not None:
            self._demand_keys(keys)
        try:
            self.socket.bind(bind.address)
        except zmq.ZMQError as error:
            self.socket.close(linger=0)
            raise ConnectError(
                f"cannot listen: {_reason(error, bind.address)}", address=bind.address
            ) from error
        self._file = _identity(bind.host) if bind.scheme == "ipc" else None
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._is_skipping = False

    def _demand_keys(self, keys: KeyPair) -> None:
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        self.socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)

    def receive(self) -> tuple[bytes, list[Buffer], str] | None:
        """Take the next message; None if there is none now.

        Returns:
            The peer's id, the frames, and the public key that the peer came with.

        Of a message of more than two frames, which nobody may send, only the first two are
        kept, with an empty third one in place of the others: these are dropped by the calls
        that follow, some at a time, so that the node does something else in between.
        """
        receive = self.socket.recv
        try:
            if self._is_skipping and not self._skip():
                return None
            peer = receive(_NOW)
            frame = receive(_NOW, copy=False)
            user = str(frame.get("User-Id")) if self._asks_keys else ""
            frames: list[Buffer] = [frame.buffer]
            if frame.more:
                frame = receive(_NOW, copy=False)
                frames.append(frame.buffer)
            if frame.more:
                frames.append(b"")
                self._is_skipping = True
        except zmq.Again:
            return None
        return peer, frames, user

    def _skip(self) -> bool:
        """Drop frames of a message that has too many; True once it is over."""
        for _ in range(SKIPPED_MAX):
            if not self.socket.recv(_NOW, copy=False).more:
                self._is_skipping = False
                return True
        return False

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """Hand a message to ZeroMQ.

        Returns:
            False if it was dropped: the peer does not read, or is gone. It asks again.
        """
        send, last = self.socket.send, len(frames) - 1
        try:
            send(peer, _NOW_MORE)
            for index, frame in enumerate(frames):
                flags = _NOW_MORE if index < last else _NOW
                if len(frame) < COPY_BELOW_NBYTES:
                    send(frame, flags)
                else:
                    send(frame, flags, copy=False)
        except zmq.ZMQError as error:
            if error.errno in {errno.EAGAIN, errno.EHOSTUNREACH}:
                return False
            raise
        return True

    def reaches(self, peer: bytes) -> bool:
        """Tell whether a peer is still connected, by a reply to a request that nobody made."""
        try:
            self.socket.send_multipart([peer, *UNASKED], _NOW)
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return False
            if error.errno != errno.EAGAIN:  # it does not read
                raise
        return True

    def close(self) -> None:
        """Stop listening; replies on their way have half a second."""
        self.socket.close()
        if self._file is not None and _identity(self.bind.host) == self._file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.bind.host)


def _reason(error: zmq.ZMQError, address: str) -> str:
    unresolved = why_unresolved(address) if error.errno == errno.ENODEV else None
    if unresolved:
        return f"{unresolved}: is it spelled right?"
    reason, step = zmq.strerror(error.errno or 0), NEXT_STEPS.get(error.errno or 0)
    return f"{reason}; {step}" if step else reason


def check_free(path: str, address: str) -> None:
    """See that a unix socket may be made at ``path``; one that nobody listens on may go.

    An abstract name (``@...``) is no file; binding tells whether it is taken.

    Raises:
        ConnectError: somebody listens there, or it is no socket; nothing was changed.
    """
    if path.startswith("@"):
        return
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:  # nothing there, or no way to it: which binding will tell
        return
    if not is_socket:
        raise ConnectError(
            "cannot listen: a file of another kind is there; bind to another path",
            address=address,
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:  # its queue is full, or it is another user's: somebody is there
            pass
    raise ConnectError(
        "cannot listen: another process does; stop it, or bind to another path", address=address
    )


def _identity(path: str) -> tuple[int, int] | None:
    """Tell a file from a later one of its path; None where there is no file."""
    if path.startswith("@"):
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
