"""A transport to a node in the same process, without sockets, for deterministic tests.

``InprocHub`` connects clients with a handler of frames. Messages are copied, as a network does.
With one client thread everything is deterministic: a message is handled inside its ``send``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from smbox.errors import TransportError
from smbox.wire.header import Buffer

IDLE_S: Final = 0.001

Answers: TypeAlias = Iterable[tuple[bytes, Sequence[Buffer]]]
Handler: TypeAlias = Callable[[bytes, list[Buffer]], Answers]
"""Takes a connection and its message, or no frames when a client waits for nothing new;
returns messages, each with the connection that it is for."""


class InprocHub:
    """Connects any number of clients with one handler.

    Args:
        handler: as the attribute.

    Attributes:
        handler: called by one thread at a time; a test may replace it.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._lock = threading.Lock()
        self._inboxes: dict[bytes, deque[list[Buffer]]] = {}
        self._names = itertools.count(1)

    def connect(self) -> InprocTransport:
        """Open a new connection."""
        name = b"inproc-%d" % next(self._names)
        self._inboxes[name] = deque()
        return InprocTransport(self, name)

    def deliver(self, connection: bytes, frames: Sequence[Buffer]) -> None:
        """Pass a message to the handler, and its replies to the connections they are for."""
        with self._lock:
            copies: list[Buffer] = [bytes(frame) for frame in frames]
            for peer, answer in self.handler(connection, copies):
                inbox = self._inboxes.get(peer)  # once: other threads close theirs meanwhile
                if inbox is not None:
                    inbox.append([bytes(frame) for frame in answer])

    def inbox(self, connection: bytes) -> deque[list[Buffer]] | None:
        """Return the messages that have arrived for ``connection``; None once it is closed."""
        return self._inboxes.get(connection)

    def disconnect(self, connection: bytes) -> None:
        """Forget a connection; messages for it are dropped from now on."""
        self._inboxes.pop(connection, None)


class InprocTransport:
    """One connection of a hub; ``InprocHub.connect`` returns it."""

    def __init__(self, hub: InprocHub, connection: bytes) -> None:
        self._hub = hub
        self._connection = connection

    def _arrived(self) -> deque[list[Buffer]]:
        inbox = self._hub.inbox(self._connection)
        if inbox is None:
            raise TransportError("the connection is closed")
        return inbox

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a message; the queue is never full."""
        self._arrived()
        self._hub.deliver(self._connection, frames)
        return True

    def receive(self, timeout_s: float) -> list[Buffer] | None:
        """Return the next message; while there is none, call the handler's tick."""
        limit_s = time.monotonic() + timeout_s
        inbox = self._arrived()
        while not inbox:
            self._hub.deliver(self._connection, ())
            if inbox:
                break
            if time.monotonic() >= limit_s:
                return None
            time.sleep(IDLE_S)
        return inbox.popleft()

    def close(self) -> None:
        """Disconnect; the transport keeps no lent memory. A child's hub is its own copy."""
        self._hub.disconnect(self._connection)

    def is_released(self) -> bool:
        """Messages are copied at once."""
        return True
