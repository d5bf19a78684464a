"""A listening ROUTER socket that sends and receives messages without waiting.

ZeroMQ replaces any file at the path of an ipc address, and leaves its own file there. So the
listener checks the file before it binds, and removes it at the end.
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
from smbox.transports.zeromq import NOW, NOW_MORE, family_of, resolution_error
from smbox.wire.codec import Reply, encode_reply
from smbox.wire.header import LONG_NBYTES_MAX, Buffer
from smbox.wire.messages import Empty
from smbox.wire.ops import Op

COPY_BELOW_NBYTES: Final = 64 * 1024
"""Smaller frames are copied into ZeroMQ, which is faster than passing a buffer."""

FRAME_NBYTES_MAX: Final = LONG_NBYTES_MAX + (1 << 20)
"""Longer than any legal frame, so that a frame that is a little too long is answered."""

LINGER_MS: Final = 500

QUEUE_MAX: Final = 2 * WINDOW_MAX
"""Limit of the replies queued for one peer (SNDHWM). A client has at most a window of them, but
ZeroMQ learns what the peer has read in steps of half the limit. With a limit of one window,
replies of a full window were dropped, and each cost the client its retry timeout (1 s)."""

RECEIVED_MAX: Final = 2 * WINDOW_MAX
"""Limit of the requests of one peer that ZeroMQ reads ahead (RCVHWM); more stay in the kernel's
buffers. Each time that half as many were received, ZeroMQ's thread wakes to read on. With a
limit of 2, a small put takes a tenth longer than with 8, and with 8 some hundredths longer than
with this one. The clients' credit (flow.py) limits the bytes of these requests."""

SKIPPED_MAX: Final = 4096
"""Surplus frames of a message that are dropped at a time: some milliseconds of work."""

HEARTBEAT_MS: Final = 20_000

NEXT_STEPS: Final = {
    errno.EADDRINUSE: "stop what listens there, or bind to another port (0: a free one)",
    errno.EADDRNOTAVAIL: "bind to an address of this host",
    errno.EACCES: "bind to a port from 1024 on, or to a path that you may write",
    errno.ENOENT: "create the folder of the path first",
}
"""What to do if an address cannot be bound."""

HANDSHAKE_MS: Final = 5_000
"""A connection without a valid key is closed after this time."""

PROBE: Final = encode_reply(Reply(Op.PING, body=Empty()))
"""Tests a connection: clients ignore a reply to a request that they did not send."""


class Listener:
    """A bound ROUTER socket.

    Attributes:
        address: where it listens, with the actual port.
        is_open: its clients need no cookie proof: they have keys, or may be on other hosts.

    Args:
        context: of ZeroMQ.
        bind: where to listen.
        keys: of the node, if clients must have keys; a ZapHandler checks those.

    Raises:
        ConnectError: the address cannot be bound; nothing is left behind.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], bind: Bind, keys: KeyPair | None = None
    ) -> None:
        self.bind = bind
        self._has_keys = keys is not None
        self.is_open = self._has_keys or not bind.is_private
        if bind.scheme == "ipc":
            check_free(bind.host, bind.address)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self.socket.setsockopt(zmq.SNDHWM, QUEUE_MAX)
        self.socket.setsockopt(zmq.RCVHWM, RECEIVED_MAX)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_NBYTES_MAX)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.socket.setsockopt(zmq.IPV6, int(family_of(bind.address) == socket.AF_INET6))
        if keys is not None:
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
            self.socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
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

    def receive(self) -> tuple[bytes, list[Buffer], str] | None:
        """Receive the next message; None if there is none.

        A message of more than two frames is illegal. Its first two frames are returned, with an
        empty third one for the others. The following calls drop those, some at a time, so that
        the node serves others in between.

        Returns:
            The peer's id, the frames, and the public key of the peer ("": none).
        """
        receive = self.socket.recv
        try:
            if self._is_skipping and not self._skip():
                return None
            peer = receive(NOW)
            frame = receive(NOW, copy=False)
            user = str(frame.get("User-Id")) if self._has_keys else ""
            frames: list[Buffer] = [frame.buffer]
            if frame.more:
                frame = receive(NOW, copy=False)
                frames.append(frame.buffer)
            if frame.more:
                frames.append(b"")
                self._is_skipping = True
        except zmq.Again:
            return None
        return peer, frames, user

    def _skip(self) -> bool:
        """Drop surplus frames of a message; return True when all are dropped."""
        for _ in range(SKIPPED_MAX):
            if not self.socket.recv(NOW, copy=False).more:
                self._is_skipping = False
                return True
        return False

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """Send a message.

        Returns:
            False if it was dropped, because the peer does not read or is disconnected; the
            client repeats the request.
        """
        send, last = self.socket.send, len(frames) - 1
        try:
            send(peer, NOW_MORE)
            for index, frame in enumerate(frames):
                flags = NOW_MORE if index < last else NOW
                send(frame, flags, copy=len(frame) < COPY_BELOW_NBYTES)
        except zmq.ZMQError as error:
            if error.errno in {errno.EAGAIN, errno.EHOSTUNREACH}:
                return False
            raise
        return True

    def is_connected(self, peer: bytes) -> bool:
        """Return whether a peer is connected; sends it ``PROBE``."""
        try:
            self.socket.send_multipart([peer, *PROBE], NOW)
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return False
            if error.errno != errno.EAGAIN:  # connected, but does not read
                raise
        return True

    def close(self) -> None:
        """Stop listening; ZeroMQ sends queued replies for up to half a second."""
        self.socket.close()
        if self._file is not None and _identity(self.bind.host) == self._file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.bind.host)


def _reason(error: zmq.ZMQError, address: str) -> str:
    unresolved = resolution_error(address) if error.errno == errno.ENODEV else None
    if unresolved:
        return unresolved
    reason, step = zmq.strerror(error.errno or 0), NEXT_STEPS.get(error.errno or 0)
    return f"{reason}; {step}" if step else reason


def check_free(path: str, address: str) -> None:
    """Check that no process listens at ``path``; an unused socket file may be replaced.

    An abstract name (``@...``) is not a file; binding fails if it is taken.

    Raises:
        ConnectError: a process listens there, or it is another file; nothing was changed.
    """
    if path.startswith("@"):
        return
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:  # no file, or no access: then binding succeeds or fails
        return
    if not is_socket:
        raise ConnectError(
            "cannot listen: the path is an existing file; bind to another path",
            address=address,
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.0)
        # Another error: its queue is full, or it is another user's.
        if probe.connect_ex(path) in {errno.ECONNREFUSED, errno.ENOENT}:
            return
    raise ConnectError(
        "cannot listen: another process does; stop it, or bind to another path", address=address
    )


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file, None if there is no file."""
    if path.startswith("@"):
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
