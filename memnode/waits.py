"""WAIT: requests that wait for a version of a region. Pure: versions and time are handed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from memnode.sessions import Connection
from smbox.errors import LimitError, RemoteError, RequestTimeoutError
from smbox.wire.codec import Reply, Request, refuse, reply_to

POLL_S: Final = 0.001
"""How often versions and locked stripes are looked at while somebody waits, in seconds."""

WAITS_MAX: Final = 64
"""Waits that one connection may have under way."""


class Wait(NamedTuple):
    """A request that is answered once its region has reached its version, or at a time."""

    request: Request
    deadline_s: float


class Waits:
    """The waits under way; nothing is polled while there are none.

    Attributes:
        by_connection: those of each connection, by the request's id.
    """

    def __init__(self) -> None:
        self.by_connection: dict[Connection, dict[int, Wait]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_connection.values()))

    def add(self, connection: Connection, request: Request, *, deadline_s: float) -> None:
        """Take up a wait; a repeated one replaces the earlier.

        Raises:
            LimitError: the connection has ``WAITS_MAX`` waits already; nothing changed.
        """
        known = self.by_connection.setdefault(connection, {})
        if request.request not in known and len(known) >= WAITS_MAX:
            raise LimitError("too many waits of one connection", waits_max=WAITS_MAX)
        known[request.request] = Wait(request, deadline_s)

    def drop(self, connection: Connection) -> None:
        """Forget the waits of a connection that is gone."""
        self.by_connection.pop(connection, None)

    def poll(
        self, version_of: Callable[[int], int], *, now_s: float
    ) -> list[tuple[Connection, Reply]]:
        """Take out the waits that are over, and return their replies.

        Args:
            version_of: gives the version of the region at an address; raises a RemoteError
                if there is none any more.
            now_s: monotonic seconds.
        """
        versions: dict[int, int | RemoteError] = {}
        replies: list[tuple[Connection, Reply]] = []
        for connection, waits in list(self.by_connection.items()):
            for key, (request, deadline_s) in list(waits.items()):
                if request.address not in versions:
                    versions[request.address] = _look(version_of, request.address)
                is_late = now_s >= deadline_s
                reply = _reply(request, versions[request.address], is_late=is_late)
                if reply is not None:
                    replies.append((connection, reply))
                    del waits[key]
            if not waits:
                del self.by_connection[connection]
        return replies


def _look(version_of: Callable[[int], int], address: int) -> int | RemoteError:
    try:
        return version_of(address)
    except RemoteError as freed:
        return freed


def _reply(request: Request, found: int | RemoteError, *, is_late: bool) -> Reply | None:
    if isinstance(found, RemoteError):
        return refuse(request, found)
    if found >= request.version:
        return reply_to(request, version=found)
    if not is_late:
        return None
    timeout_s = request.nbytes / 1000
    late = RequestTimeoutError(
        "the version was not reached", timeout_s=timeout_s, version=found
    )
    return refuse(request, late)
