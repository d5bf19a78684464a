"""Frames between a launcher and its agent on a remote host, sent in two pipes. Pure.

A frame is a kind (u8), the number of a process (u32), a length (u64), all little-endian, and
that many bytes. Bytes before ``BEGIN`` are not from the agent, for example a login greeting.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeVar

import msgspec

from smbox.errors import RemoteProtocolError
from smbox_torch.launching.children import Sink

BEGIN: Final = b"\nsmbox agent 2\n"
"""The first bytes that an agent sends; the number is the version of the format."""

_HEADER: Final = struct.Struct("<BIQ")
FRAME_NBYTES_MAX: Final = 1 << 26


class Kind(IntEnum):
    """The kind of a frame; the first three are sent to the agent."""

    PREPARE = 1  # JSON: folder, env, words (command line), workers, grace_s
    START = 2  # JSON: argv, env, at_death (signal), node (name, or empty)
    SIGNAL = 3  # JSON: number of the signal
    READY = 4  # JSON: the fields of Ready
    REFUSED = 5  # JSON: the reason
    OUTPUT = 6  # bytes that the process printed
    REPORT = 7  # bytes of its reports
    EXIT = 8  # JSON: exit code, as in subprocess


Form = TypeVar("Form")
Take = Callable[[Kind, int, bytes], None]


class Ready(msgspec.Struct, frozen=True):
    """The contents of READY; attributes as in StartingHost."""

    pid: int
    python: str
    command: tuple[str, ...]
    free_port: int


def frame(kind: Kind, number: int, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(kind, number, len(payload)) + payload


def encode(kind: Kind, number: int, value: Any) -> bytes:
    """Return a frame with a value as JSON."""
    return frame(kind, number, json.dumps(value).encode())


def decode(payload: bytes, form: type[Form]) -> Form:
    """Decode a value that ``encode`` encoded.

    Raises:
        RemoteProtocolError: it is not valid JSON, or not of the expected type.
    """
    try:
        return msgspec.convert(json.loads(payload), form)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise RemoteProtocolError(f"invalid value from an agent: {error}") from error


class Frames:
    """Splits a stream of bytes into frames.

    Args:
        take: called with the kind, number and bytes of each frame.
        before: receives the bytes before BEGIN; None: the stream has no BEGIN.
    """

    def __init__(self, take: Take, before: Sink | None = None) -> None:
        self._take = take
        self._before = before
        self._rest = bytearray()

    @property
    def is_begun(self) -> bool:
        """Return whether BEGIN was received."""
        return self._before is None

    def feed(self, chunk: bytes) -> None:
        """Process a chunk of bytes; chunks may end anywhere.

        Raises:
            RemoteProtocolError: the bytes are not valid frames.
        """
        self._rest += chunk
        if self._before is not None and not self._find_begin(self._before):
            return
        while len(self._rest) >= _HEADER.size:
            kind, number, nbytes = _HEADER.unpack_from(self._rest)
            if nbytes > FRAME_NBYTES_MAX or kind not in Kind.__members__.values():
                raise RemoteProtocolError(
                    "invalid frame from an agent", kind=kind, nbytes=nbytes
                )
            limit = _HEADER.size + nbytes
            if len(self._rest) < limit:
                return
            payload = bytes(self._rest[_HEADER.size : limit])
            del self._rest[:limit]
            self._take(Kind(kind), number, payload)

    def end(self) -> None:
        """Handle the end of the input; an incomplete frame is dropped."""
        if self._before is not None:
            self._before.feed(bytes(self._rest))
            self._before.end()
        self._rest.clear()

    def _find_begin(self, before: Sink) -> bool:
        found = self._rest.find(BEGIN)
        is_found = found >= 0
        count = found if is_found else max(0, len(self._rest) - len(BEGIN) + 1)
        before.feed(bytes(self._rest[:count]))
        del self._rest[: count + len(BEGIN) if is_found else count]
        if is_found:
            before.end()
            self._before = None
        return is_found
