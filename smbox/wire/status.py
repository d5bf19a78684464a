"""Status numbers of replies, and how an error travels: one table, both ways. Pure.

Numbers are never reused. 1-63 become an error of the caller; 64 and up are answered by the
session itself and never reach a caller.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from smbox import errors
from smbox.errors import SmboxError
from smbox.wire.messages import ErrorBody


class Status(IntEnum):
    """How a request ended."""

    __hash__ = int.__hash__  # as Op's

    OK = 0
    ERROR = 1
    REGION_NOT_FOUND = 2
    REGION_EXISTS = 3
    REGION_FREED = 4
    ADDRESS_RANGE = 5
    LAYOUT_MISMATCH = 6
    OUT_OF_MEMORY = 7
    LIMIT = 8
    ACCESS_DENIED = 9
    SESSION_EXPIRED = 10
    STOPPING = 11
    TIMEOUT = 12
    BAD_MESSAGE = 13
    VERSION = 14
    OTHER_MEMORY = 15
    NO_SESSION = 64
    GAP = 65
    PARKED = 66


ERRORS: Final[dict[Status, type[SmboxError]]] = {
    Status.ERROR: errors.RemoteError,
    Status.REGION_NOT_FOUND: errors.RegionNotFoundError,
    Status.REGION_EXISTS: errors.RegionExistsError,
    Status.REGION_FREED: errors.RegionFreedError,
    Status.ADDRESS_RANGE: errors.AddressRangeError,
    Status.LAYOUT_MISMATCH: errors.LayoutMismatchError,
    Status.OUT_OF_MEMORY: errors.OutOfMemoryError,
    Status.LIMIT: errors.LimitError,
    Status.ACCESS_DENIED: errors.AccessDeniedError,
    Status.SESSION_EXPIRED: errors.SessionExpiredError,
    Status.STOPPING: errors.NodeStoppingError,
    Status.TIMEOUT: errors.RequestTimeoutError,
    Status.BAD_MESSAGE: errors.RemoteProtocolError,
    Status.VERSION: errors.VersionMismatchError,
    Status.OTHER_MEMORY: errors.PeerLostError,
}
"""Error class that a caller sees for a status."""

_STATUS_OF: Final = {error: status for status, error in ERRORS.items()}

STATUS_OF: Final = {int(status): status for status in Status}
"""Status by number."""


def status_of(error: SmboxError) -> Status:
    """Return the status of an error: its class's, or that of the nearest base in the table."""
    for base in type(error).__mro__:
        if base in _STATUS_OF:
            return _STATUS_OF[base]
    return Status.ERROR


def error_body(error: SmboxError, applied: int, old: bytes) -> ErrorBody:
    """Word an error for a reply; see ErrorBody."""
    facts = {name: _plain(value) for name, value in error.facts.items()}
    return ErrorBody(message=error.message, facts=facts, applied=applied, old=old)


def error_of(status: Status, message: str, facts: dict[str, Any]) -> SmboxError:
    """Build the error that a caller sees for ``status``; a peer may name facts as it likes."""
    free = {name: value for name, value in facts.items() if name not in {"self", "message"}}
    return ERRORS.get(status, errors.RemoteError)(message, **free)


def _plain(value: object) -> Any:
    """Make a fact writable as msgpack: ints, floats, strings, None; else its text."""
    if isinstance(value, bool | float | str | None):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else str(int(value))
    return str(value)
