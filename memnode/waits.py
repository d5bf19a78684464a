"""Requests that wait for a version of a region. Pure: versions and time are handed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from memnode.sessions import Connection
from smbox.errors import LimitError, RemoteError
from smbox.wire.codec import Request

POLL_S: Final = 0.001
"""How often versions and locked stripes are looked at while somebody waits, in seconds."""

WAITS_MAX: Final = 64
"""Waits that one connection may have under way."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that is answered once a region has reached a version.

    Attributes:
        connection: whom to answer.
        request: what was asked; its id is unique within the connection.
        address: the region's global address.
        version: the version to reach.
        deadline_s: when to give up, in monotonic seconds.
    """

    connection: Connection
    request: Request
    address: int
    version: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class WaitEnd:
    """A wait that is over.

    Attributes:
        wait: which one.
        version: the region's version now; 0 with an error.
        error: why it will never be reached, or None: reached or timed out.
        is_reached: whether the version was reached.
    """

    wait: Wait
    version: int
    error: RemoteError | None
    is_reached: bool


class Waits:
    """The waits under way; nothing is polled while there are none."""

    def __init__(self) -> None:
        self._by_address: dict[int, dict[tuple[Connection, int], Wait]] = {}
        self._per_connection: dict[Connection, int] = {}

    def __len__(self) -> int:
        return sum(self._per_connection.values())

    def add(self, wait: Wait) -> None:
        """Take up a wait; a repeated one replaces the earlier.

        Raises:
            LimitError: the connection has ``WAITS_MAX`` waits already; nothing changed.
        """
        known = self._by_address.setdefault(wait.address, {})
        key = (wait.connection, wait.request.request)
        if key not in known:
            count = self._per_connection.get(wait.connection, 0)
            if count >= WAITS_MAX:
                raise LimitError("too many waits of one connection", waits_max=WAITS_MAX)
            self._per_connection[wait.connection] = count + 1
        known[key] = wait

    def drop(self, connection: Connection) -> None:
        """Forget the waits of a connection that is gone."""
        if self._per_connection.pop(connection, None) is None:
            return
        for address in list(self._by_address):
            kept = {
                key: wait
                for key, wait in self._by_address[address].items()
                if wait.connection != connection
            }
            self._put_back(address, kept)

    def poll(self, version_of: Callable[[int], int], *, now_s: float) -> list[WaitEnd]:
        """Take out and return the waits that are over.

        Args:
            version_of: gives the version of the region at an address; raises a RemoteError
                if there is none any more.
            now_s: monotonic seconds.
        """
        ends: list[WaitEnd] = []
        for address in list(self._by_address):
            ends.extend(self._poll_region(address, version_of, now_s))
        return ends

    def _poll_region(
        self, address: int, version_of: Callable[[int], int], now_s: float
    ) -> list[WaitEnd]:
        error: RemoteError | None = None
        version = 0
        try:
            version = version_of(address)
        except RemoteError as freed:
            error = freed
        ends: list[WaitEnd] = []
        kept: dict[tuple[Connection, int], Wait] = {}
        for key, wait in self._by_address[address].items():
            is_reached = error is None and version >= wait.version
            if is_reached or error is not None or now_s >= wait.deadline_s:
                ends.append(WaitEnd(wait, version, error, is_reached))
                self._uncount(wait.connection)
            else:
                kept[key] = wait
        self._put_back(address, kept)
        return ends

    def _put_back(self, address: int, kept: dict[tuple[Connection, int], Wait]) -> None:
        if kept:
            self._by_address[address] = kept
        else:
            self._by_address.pop(address, None)

    def _uncount(self, connection: Connection) -> None:
        left = self._per_connection[connection] - 1
        if left:
            self._per_connection[connection] = left
        else:
            del self._per_connection[connection]
