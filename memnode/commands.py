"""The table of operations: what each one leads to, and what it demands first. Pure.

A request becomes one effect, a small value that says what has to be done; the server does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from smbox.wire.codec import Reply, Request
from smbox.wire.messages import Hello
from smbox.wire.ops import Op

Connection = tuple[int, bytes]
"""Index of the listening socket, and ZeroMQ's id of the peer there."""

ChannelKey = tuple[int, int]
"""Client id as a number, and the client's number of the channel."""


class Answer(NamedTuple):
    """Send this reply."""

    connection: Connection
    reply: Reply


class Greet(NamedTuple):
    """Check who wants a session; if it may have one, open it."""

    connection: Connection
    request: Request
    hello: Hello


class Part(NamedTuple):
    """End this session for good, and answer."""

    connection: Connection
    request: Request


class Execute(NamedTuple):
    """Run the request on the memory, after all earlier ones of its channel."""

    connection: Connection
    request: Request


Effect = Answer | Greet | Part | Execute


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table.

    Attributes:
        op: the operation.
        effect_of: what a request of this op leads to.
        needs_session: whether it is refused before HELLO.
    """

    op: Op
    effect_of: Callable[[Connection, Request], Effect]
    needs_session: bool = True


def _greet(connection: Connection, request: Request) -> Effect:
    return Greet(connection, request, cast("Hello", request.body))


COMMANDS: Final[dict[Op, Command]] = {
    command.op: command
    for command in (
        Command(Op.HELLO, _greet, needs_session=False),
        Command(Op.BYE, Part),
        Command(Op.PING, Execute),
        Command(Op.CREATE, Execute),
        Command(Op.PUBLISH, Execute),
        Command(Op.ATTACH, Execute),
        Command(Op.FREE, Execute),
        Command(Op.LIST, Execute),
        Command(Op.STATS, Execute),
        Command(Op.GET, Execute),
        Command(Op.PUT, Execute),
        Command(Op.ACCUMULATE, Execute),
        Command(Op.ELASTIC, Execute),
        Command(Op.FETCH, Execute),
        Command(Op.WAIT, Execute),
        Command(Op.BATCH, Execute),
        Command(Op.GATHER, Execute),
        Command(Op.FROM, Execute),
        Command(Op.UPDATE, Execute),
        Command(Op.SNAPSHOT, Execute),
        Command(Op.LEND, Execute),
        Command(Op.STAMPS, Execute),
    )
}
