"""What a launcher and its agent in another host tell each other: frames in two pipes. Pure.

A frame is a kind (u8), the number of a process (u32) and a length (u64), little-endian, and so
many bytes. What comes before ``BEGIN`` is of somebody else, a greeting of the login for one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from smbox.errors import RemoteProtocolError

BEGIN: Final = b"\nsmbox agent 1\n"
"""What an agent writes first; the number is that of this form."""

_HEADER: Final = struct.Struct("<BIQ")
FRAME_NBYTES_MAX: Final = 1 << 26


class Kind(IntEnum):
    """Of a frame; the first four go to the agent."""

    PREPARE = 1  # JSON: folder, env, words of the command, workers, grace_s
    START = 2  # JSON: argv, env, at_death (signal), segments (prefix of what it leaves)
    SIGNAL = 3  # JSON: number of the signal
    READY = 4  # JSON: pid, python, command, free_port
    REFUSED = 5  # JSON: why
    OUTPUT = 6  # bytes that the process printed
    REPORT = 7  # bytes of its reports
    EXIT = 8  # JSON: exit code as subprocess has it


Take = Callable[[Kind, int, bytes], None]


def frame(kind: Kind, number: int, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(kind, number, len(payload)) + payload


def told(kind: Kind, number: int, value: Any) -> bytes:
    """Return a frame with a value as JSON."""
    return frame(kind, number, json.dumps(value).encode())


class Frames:
    """Takes bytes, gives frames.

    Args:
        take: called with kind, number and bytes of each frame.
        before: takes what comes before BEGIN; None: frames come at once.
        ended: called when nothing more comes.
    """

    def __init__(
        self,
        take: Take,
        before: Callable[[bytes], None] | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._take = take
        self._before = before
        self._ended = ended
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take bytes as they come, wherever they are cut.

        Raises:
            RemoteProtocolError: these are no frames.
        """
        self._rest += chunk
        if self._before is not None and not self._find_begin(self._before):
            return
        while len(self._rest) >= _HEADER.size:
            kind, number, nbytes = _HEADER.unpack_from(self._rest)
            if nbytes > FRAME_NBYTES_MAX or kind not in Kind.__members__.values():
                raise RemoteProtocolError("no frame of an agent", kind=kind, nbytes=nbytes)
            limit = _HEADER.size + nbytes
            if len(self._rest) < limit:
                return
            payload = bytes(self._rest[_HEADER.size : limit])
            del self._rest[:limit]
            self._take(Kind(kind), number, payload)

    def _find_begin(self, before: Callable[[bytes], None]) -> bool:
        found = self._rest.find(BEGIN)
        keep = len(self._rest) - len(BEGIN) + 1 if found < 0 else found
        before(bytes(self._rest[: max(keep, 0)]))
        del self._rest[: max(keep, 0) if found < 0 else found + len(BEGIN)]
        if found >= 0:
            self._before = None
        return found >= 0

    def end(self) -> None:
        """Take note that nothing more comes; a frame that is not whole is dropped."""
        self._ended()
