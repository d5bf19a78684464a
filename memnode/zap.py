"""ZAP (RFC 27 of ZeroMQ): ZeroMQ asks here whether a client's CURVE key is authorised.

It asks once for each handshake, after the key has been proven. Whoever is refused costs an
answer and no memory. Handshakes of strangers beyond a rate are put off: their ZeroMQ tries
again. Authorised clients are always let in, or strangers could keep them out.
"""

from __future__ import annotations

import logging
from typing import Final

import zmq
from zmq.utils import z85

from memnode.access import Access

ENDPOINT: Final = "inproc://zeromq.zap.01"
DOMAIN: Final = b"smbox"
VERSION: Final = b"1.0"
FRAMES: Final = 7  # version, request id, domain, address, identity, mechanism, credentials

RATE: Final = 200.0
"""Handshakes of strangers a second that are answered on average."""

BURST: Final = 1000.0
"""And at once: a large run may start before its keys are in the folder."""

REFUSED_NOTE_S: Final = 10.0
"""The log tells of refusals at most so often."""

_LOG = logging.getLogger(__name__)


class ZapHandler:
    """Answers ZeroMQ's questions; the server polls ``socket`` and calls ``answer``.

    Args:
        context: of the listeners; the handler must be there before they are.
        access: who is authorised.
        now_s: monotonic seconds.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], access: Access, now_s: float
    ) -> None:
        self._access = access
        self._allowed, self._filled_s = BURST, now_s
        self._refused, self._noted_s = 0, now_s - REFUSED_NOTE_S
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ENDPOINT)

    def answer(self, now_s: float) -> None:
        """Answer one question."""
        try:
            asked = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        request = asked[1] if len(asked) > 1 else b""
        status, text, user = self._judge(asked, now_s)
        self.socket.send_multipart([VERSION, request, status, text, user, b""])

    def _judge(self, asked: list[bytes], now_s: float) -> tuple[bytes, bytes, bytes]:
        is_curve = len(asked) == FRAMES and asked[5] == b"CURVE" and len(asked[6]) == 32
        user = z85.encode(asked[6]) if is_curve else b""
        if is_curve and self._access.find_now(user.decode()) is not None:
            return b"200", b"", user
        self._allowed = min(BURST, self._allowed + RATE * (now_s - self._filled_s))
        self._filled_s = now_s
        if self._allowed < 1:
            return b"300", b"too many handshakes: later", b""
        self._allowed -= 1
        self._note(asked[3].decode(errors="replace") if len(asked) > 3 else "?", now_s)
        return b"400", b"this key is not authorised", b""

    def _note(self, address: str, now_s: float) -> None:
        self._refused += 1
        if now_s - self._noted_s >= REFUSED_NOTE_S:
            _LOG.warning("refused %d handshakes, the last from %s", self._refused, address)
            self._refused, self._noted_s = 0, now_s

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)
