"""Every error smbox raises, in one tree; pure, and free of any other smbox module.

    SmboxError                            message and facts; prints both; survives pickling
    |- ConfigError (ValueError)           told something impossible, before anything happened
    |- ProtocolError
    |  |- LocalProtocolError              our own bug: a message that is illegal in this state
    |  `- RemoteProtocolError             the peer's bug; the session is closed
    |     `- VersionMismatchError         the peer speaks another protocol version
    |- TransportError (ConnectionError)
    |  |- ConnectError                    no node could be reached; nothing was sent
    |  `- PeerLostError                   box closed, or its memory gone; outcome says more
    |- RequestTimeoutError (TimeoutError) facts: op, timeout_s, outcome
    |- SegmentError (OSError)             shared memory cannot be made, mapped or trusted
    |- NativeError (ImportError)          the native library is missing, stale or broken
    |- RemoteError                        the node (or the memory) said no; the session lives
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
    |- LeaseLostError                     another process has taken this one's place in a run
    |- RankTakenError                     a living process has this rank; names host and pid
    |- StaleVersionError                  a published version is no longer in the memory
    |- WorkerLostError                    a training process died or stopped; names its rank
    `- StepMismatchError                  workers that step together did not step equally often

``outcome`` of a timeout is ``"none"``, ``"partial"`` (with the ranges applied), ``"all"`` or
``"unknown"``; docs/failure.md says what to do after each.
"""

from __future__ import annotations

from functools import partial


class SmboxError(Exception):
    """Base of all errors of smbox: a message and the facts that go with it.

    Args:
        message: what was wrong, what is known about the effect, what to do next.
        facts: named values; printed behind the message and kept as ``error.facts``.
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        """Return the message with its facts (a KeyError base would print its repr)."""
        if not self.facts:
            return self.message
        shown = ", ".join(f"{name}={value!r}" for name, value in self.facts.items())
        return f"{self.message} ({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from message and facts: errors of workers cross processes."""
        return partial(type(self), self.message, **self.facts), ()


class ConfigError(SmboxError, ValueError):
    """An argument, setting or combination that can never work; nothing happened."""


class ProtocolError(SmboxError):
    """A message that the protocol does not allow."""


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
    """The box was closed meanwhile, or the memory is no longer that of its node."""


class RequestTimeoutError(SmboxError, TimeoutError):
    """An operation did not end in time; ``facts["outcome"]`` tells what is known.

    ``handle`` is the request's Handle: that of an ``_nb`` verb can be waited for again, that
    of a blocking verb tells its ``outcome()``. It stays behind when the error travels to
    another process.
    """

    handle: object = None


class SegmentError(SmboxError, OSError):
    """A shared-memory segment cannot be created, mapped or trusted."""


class NativeError(SmboxError, ImportError):
    """The native library is missing, was built from other sources, or cannot be loaded."""


class RemoteError(SmboxError):
    """The node, or the memory itself, refused the operation; nothing was changed."""


class RegionNotFoundError(RemoteError, KeyError):
    """No region has this name or address."""


class RegionExistsError(RemoteError):
    """A region of this name exists already."""


class RegionFreedError(RemoteError):
    """The region was freed; its address is never used again."""


class AddressRangeError(RemoteError, IndexError):
    """The address or range is outside every region, or leaves the one it begins in."""


class LayoutMismatchError(RemoteError, ValueError):
    """Shape, dtype or consistency differ from the region's."""


class OutOfMemoryError(RemoteError, MemoryError):
    """The node has no room left for this."""


class LimitError(RemoteError):
    """A limit of the node is reached: regions, clients, channels or a size."""


class AccessDeniedError(RemoteError, PermissionError):
    """The client did not prove that it may do this."""


class SessionExpiredError(RemoteError):
    """The node has forgotten this client: the effect of what was under way is unknown."""


class NodeStoppingError(RemoteError):
    """The node is shutting down and takes no new work."""


class LeaseLostError(SmboxError):
    """This process holds its place no more, nothing was changed; join again to go on."""


class RankTakenError(SmboxError):
    """A living process has this rank of the run; the caller did not join."""


class StaleVersionError(SmboxError):
    """A published version was overwritten, or freed, before it was copied; nothing changed."""


class WorkerLostError(SmboxError):
    """A training process died or stopped answering; the message names its rank."""


class StepMismatchError(SmboxError):
    """Workers that step together did different numbers of steps; the message names the rank."""
