"""Sessions: one channel of a client on the connection that it said HELLO on last.

No socket, clock or memory in here: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memnode.liveness import Liveness
from smbox.errors import LimitError
from smbox.wire.messages import Hello

Connection = tuple[int, bytes]
"""Index of the listening socket, and ZeroMQ's id of the peer there."""

ChannelKey = tuple[int, int]
"""Client id as a number, and the client's number of the channel."""


@dataclass(frozen=True, slots=True)
class Session:
    """A channel of a client, on the connection that it said HELLO on last.

    Attributes:
        connection: where its replies go.
        key: client id and channel.
        pid: of the client, as it said.
        host: of the client, as it said.
        generation: of the connection among those of the channel, as the client said.
    """

    connection: Connection
    key: ChannelKey
    pid: int = 0
    host: str = ""
    generation: int = 0


def key_of(hello: Hello) -> ChannelKey:
    """Return the channel that a HELLO names."""
    return int.from_bytes(hello.client_id, "little"), hello.channel


class Sessions:
    """The sessions of a node.

    Args:
        expiry_s: silence after which a channel is forgotten, in seconds.
        sessions_max: sessions that there may be.
    """

    def __init__(self, *, expiry_s: float, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._by_connection: dict[Connection, Session] = {}
        self._by_key: dict[ChannelKey, Session] = {}
        self._liveness = Liveness[ChannelKey](expiry_s)

    def __len__(self) -> int:
        return len(self._by_connection)

    def remember(self, keys: Iterable[ChannelKey], *, now_s: float) -> None:
        """Expect channels of an earlier run of the node to come back before they expire."""
        for key in keys:
            self._liveness.touch(key, now_s=now_s)

    def touch(self, key: ChannelKey, *, now_s: float) -> None:
        """Note that a channel was heard of."""
        self._liveness.touch(key, now_s=now_s)

    def open(
        self, connection: Connection, hello: Hello, *, now_s: float
    ) -> tuple[Session, list[Session]]:
        """Begin a session, ending the former one of its channel or connection.

        Returns:
            The session, and those that it replaces: whatever is still held for them must go,
            unexecuted, before the HELLO is answered.

        Raises:
            LimitError: the node has as many sessions as it takes; nothing changed.
        """
        key = key_of(hello)
        found = (self._by_key.get(key), self._by_connection.get(connection))
        replaced = list({each.connection: each for each in found if each is not None}.values())
        if len(self) - len(replaced) >= self._sessions_max:
            raise LimitError("the node has all the sessions it takes", limit=self._sessions_max)
        for session in replaced:
            self._drop(session)
        session = Session(connection, key, hello.pid, hello.host, hello.generation)
        self._by_connection[connection] = session
        self._by_key[key] = session
        self.touch(key, now_s=now_s)
        return session, replaced

    def close(self, connection: Connection) -> Session | None:
        """End the session of a connection for good; None if it has none."""
        session = self._by_connection.get(connection)
        if session is not None:
            self._drop(session)
            self._liveness.forget(session.key)
        return session

    def session(self, connection: Connection) -> Session | None:
        """Return the session of a connection."""
        return self._by_connection.get(connection)

    def expire(self, *, now_s: float) -> list[tuple[ChannelKey, Session | None]]:
        """Forget the channels that were silent for too long, with their sessions."""
        expired = [(key, self._by_key.get(key)) for key in self._liveness.expire(now_s=now_s)]
        for _, session in expired:
            if session is not None:
                self._drop(session)
        return expired

    def _drop(self, session: Session) -> None:
        del self._by_connection[session.connection]
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
