"""Who is connected and what they may ask: frames in, effects out. Pure.

No socket, clock or memory in here: time is an argument, and the server carries the effects
out. One session is one channel of a client on its present connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memnode.commands import COMMANDS, Answer, ChannelKey, Connection, Effect
from memnode.liveness import Liveness
from smbox.errors import LimitError, RemoteError, RemoteProtocolError
from smbox.wire.codec import Request, decode_request
from smbox.wire.header import Buffer
from smbox.wire.messages import Hello
from smbox.wire.refusal import refuse, refuse_garbage
from smbox.wire.status import Status


@dataclass(frozen=True, slots=True)
class Session:
    """A channel of a client, on the connection that it said HELLO on last.

    Attributes:
        connection: where its replies go.
        key: client id and channel.
        pid: of the client, as it said.
        host: of the client, as it said.
    """

    connection: Connection
    key: ChannelKey
    pid: int
    host: str


class NodeState:
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

    def receive(
        self, connection: Connection, frames: Sequence[Buffer], *, now_s: float
    ) -> list[Effect]:
        """Judge one message.

        Args:
            connection: whom it came from.
            frames: header and, for most ops, a body.
            now_s: monotonic seconds.

        Returns:
            What has to be done: nothing for what cannot even be answered.
        """
        try:
            request = decode_request(frames)
        except RemoteProtocolError as error:
            reply = refuse_garbage(frames, error)
            return [] if reply is None else [Answer(connection, reply)]
        return [self._effect(connection, request, now_s)]

    def touch(self, connection: Connection, *, now_s: float) -> None:
        """Note that a connection that has a session was heard of."""
        self._liveness.touch(self._by_connection[connection].key, now_s=now_s)

    def open(
        self, connection: Connection, hello: Hello, *, now_s: float
    ) -> tuple[Session, list[Session]]:
        """Begin a session, ending the former one of its channel or connection.

        Returns:
            The session, and those it replaces: whatever is still held for them must go,
            unexecuted, before the HELLO is answered.

        Raises:
            LimitError: the node has as many sessions as it takes; nothing changed.
        """
        key = (int.from_bytes(hello.client_id, "little"), hello.channel)
        found = (self._by_key.get(key), self._by_connection.get(connection))
        replaced = list({each.connection: each for each in found if each is not None}.values())
        if len(self) - len(replaced) >= self._sessions_max:
            raise LimitError("the node has all the sessions it takes", limit=self._sessions_max)
        for session in replaced:
            self._drop(session)
        session = Session(connection, key, hello.pid, hello.host)
        self._by_connection[connection] = session
        self._by_key[key] = session
        self._liveness.touch(key, now_s=now_s)
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

    def has_client(self, client_id: int) -> bool:
        """Tell whether any channel of this client has a session."""
        return any(key[0] == client_id for key in self._by_key)

    def expire(self, *, now_s: float) -> list[tuple[ChannelKey, Session | None]]:
        """Forget the channels that were silent for too long, with their sessions."""
        expired = [(key, self._by_key.get(key)) for key in self._liveness.expire(now_s=now_s)]
        for _, session in expired:
            if session is not None:
                self._drop(session)
        return expired

    def _effect(self, connection: Connection, request: Request, now_s: float) -> Effect:
        command = COMMANDS[request.op]
        session = self._by_connection.get(connection)
        if session is not None:
            self._liveness.touch(session.key, now_s=now_s)
        elif command.needs_session:
            error = RemoteError("say HELLO first", op=request.op.name)
            return Answer(connection, refuse(request, error, status=Status.NO_SESSION))
        return command.effect_of(connection, request)

    def _drop(self, session: Session) -> None:
        del self._by_connection[session.connection]
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
