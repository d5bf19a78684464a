"""All errors that smbox raises, in one tree. Pure; imports no other module of smbox.

    SmboxError                            a message with facts; can be pickled
    |- ConfigError (ValueError)           an invalid argument or setting; nothing happened
    |- ProtocolError
    |  |- LocalProtocolError              a bug of this side: an illegal message
    |  `- RemoteProtocolError             a bug of the peer; the session is closed
    |     `- VersionMismatchError         the peer speaks another protocol version
    |- TransportError (ConnectionError)
    |  |- ConnectError                    no node could be reached; nothing was sent
    |  `- PeerLostError                   box closed, or its memory no longer exists
    |- RequestTimeoutError (TimeoutError) facts: op, timeout_s, outcome
    |- SegmentError (OSError)             shared memory cannot be created, mapped or trusted
    |- SystemLimitError (OSError)         too many open files, or another limit of the system
    |- NativeError (ImportError)          the native library is missing, stale or broken
    |- RemoteError                        the node or memory refused; the session continues
    |  |- RegionNotFoundError (KeyError)
    |  |- RegionExistsError
    |  |- RegionFreedError
    |  |- AddressRangeError (IndexError)
    |  |- LayoutMismatchError (ValueError)
    |  |- OutOfMemoryError (MemoryError)
    |  |- LimitError                      a limit of the node: regions, clients, sizes
    |  |- AccessDeniedError (PermissionError)
    |  |- SessionExpiredError             the node forgot this client; outcome unknown
    |  `- NodeStoppingError
    |- LeaseLostError                     another process has taken this place in a run
    |- RankTakenError                     a live process has this rank; names host and pid
    |- StaleVersionError                  a published version is no longer in the memory
    |- WorkerLostError                    a training process died or hangs; names its rank
    `- StepMismatchError                  workers in lockstep did different numbers of steps

The fact ``outcome`` of a timeout is ``"none"``, ``"partial"`` (with the ranges applied),
``"all"`` or ``"unknown"``; docs/failure.md says what to do after each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

__all__ = [
    "AccessDeniedError",
    "AddressRangeError",
    "ConfigError",
    "ConnectError",
    "LayoutMismatchError",
    "LeaseLostError",
    "LimitError",
    "LocalProtocolError",
    "NativeError",
    "NodeStoppingError",
    "OutOfMemoryError",
    "PeerLostError",
    "ProtocolError",
    "RankTakenError",
    "RegionExistsError",
    "RegionFreedError",
    "RegionNotFoundError",
    "RemoteError",
    "RemoteProtocolError",
    "RequestTimeoutError",
    "SegmentError",
    "SessionExpiredError",
    "SmboxError",
    "StaleVersionError",
    "StepMismatchError",
    "SystemLimitError",
    "TransportError",
    "VersionMismatchError",
    "WorkerLostError",
]


class SmboxError(Exception):
    """Base of all errors of smbox: a message with facts.

    Args:
        message: the cause, the known effect, and what to do next.
        facts: named values, printed after the message and kept in ``error.facts``.
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        """Return the message with its facts; KeyError would return its repr."""
        if not self.facts:
            return self.message
        shown = ", ".join(f"{name}={value!r}" for name, value in self.facts.items())
        return f"{self.message} ({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle message and facts, so that errors can cross processes."""
        return partial(type(self), self.message, **self.facts), ()


class ConfigError(SmboxError, ValueError):
    """An argument, setting or combination is invalid; nothing happened."""


class ProtocolError(SmboxError):
    """A message violates the protocol."""


class LocalProtocolError(ProtocolError):
    """This side tried to send an illegal message: a bug in smbox."""


class RemoteProtocolError(ProtocolError):
    """The peer sent an illegal message."""


class VersionMismatchError(RemoteProtocolError):
    """The peer speaks another version of the protocol; install matching releases."""


class TransportError(SmboxError, ConnectionError):
    """The connection to a memory node failed."""


class ConnectError(TransportError):
    """No memory node could be reached, or it refused the handshake; nothing was sent."""


class PeerLostError(TransportError):
    """The box was closed during the call, or the region's memory no longer exists."""


class RequestTimeoutError(SmboxError, TimeoutError):
    """An operation did not end in time; ``facts["outcome"]`` is its known effect.

    ``handle`` is the request's Handle. After an ``_nb`` verb, wait for it again. After a
    blocking verb, its ``outcome()`` returns the effect. A pickled copy has no handle.
    """

    handle: Any = None


class SegmentError(SmboxError, OSError):
    """A shared-memory segment cannot be created, mapped or trusted."""


class SystemLimitError(SmboxError, OSError):
    """A limit of the system is reached, such as open files; the message names it.

    It is no SegmentError: nothing is known about the segment or file that was to be opened.
    """


class NativeError(SmboxError, ImportError):
    """The native library is missing, was built from other sources, or cannot be loaded."""


class RemoteError(SmboxError):
    """The node or the memory refused the operation; nothing was changed.

    Exception: the other parts of a striped region; see ``facts["ranges_done"]``.
    """


class RegionNotFoundError(RemoteError, KeyError):
    """No region has this name or address."""


class RegionExistsError(RemoteError):
    """A region of this name exists already."""


class RegionFreedError(RemoteError):
    """The region was freed; its address is never reused."""


class AddressRangeError(RemoteError, IndexError):
    """The address is outside all regions, or the range exceeds its region."""


class LayoutMismatchError(RemoteError, ValueError):
    """A shape, dtype or consistency differs from the region's."""


class OutOfMemoryError(RemoteError, MemoryError):
    """The node has too little memory left."""


class LimitError(RemoteError):
    """A limit of the node is reached: number of regions, clients or channels, or a size."""


class AccessDeniedError(RemoteError, PermissionError):
    """The client has no permission for this operation."""


class SessionExpiredError(RemoteError):
    """The node has forgotten this client; the effect of requests in flight is unknown."""


class NodeStoppingError(RemoteError):
    """The node is shutting down and accepts no new requests."""


class LeaseLostError(SmboxError):
    """This process no longer holds its place; nothing changed. Join again to continue."""


class RankTakenError(SmboxError):
    """A live process has this rank of the run; the caller did not join."""


class StaleVersionError(SmboxError):
    """A published version was overwritten, or freed, before it was copied; nothing changed."""


class WorkerLostError(SmboxError):
    """A training process died or hangs; the message names its rank."""


class StepMismatchError(SmboxError):
    """Workers in lockstep did different numbers of steps; the message names the rank."""
