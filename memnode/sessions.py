"""Sessions: each channel of a client on the connection that it said HELLO on last.

No socket, clock or memory in here: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from smbox.errors import LimitError

if TYPE_CHECKING:
    from memnode.channel import Channel

Connection = tuple[int, bytes]
"""Index of the listening socket, and ZeroMQ's id of the peer there."""

ChannelKey = tuple[int, int]
"""Client id as a number, and the client's number of the channel."""

SESSIONS_MAX: Final = 1024
EXPIRY_S: Final = 300.0
"""Silence after which a channel is forgotten."""


class Sessions:
    """The channels that are connected, and those that the node expects to come back.

    Attributes:
        by_connection: the connected ones.

    Args:
        sessions_max: how many of those there may be.
    """

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self.by_connection: dict[Connection, Channel] = {}
        self._sessions_max = sessions_max
        self._absent: dict[ChannelKey, float] = {}  # and when they were last heard of

    def expect(self, keys: Iterable[ChannelKey], *, now_s: float) -> None:
        """Expect channels of an earlier run of the node to come back before they expire."""
        self._absent.update(dict.fromkeys(keys, now_s))

    @property
    def is_full(self) -> bool:
        """Whether there are as many sessions as may be."""
        return len(self.by_connection) >= self._sessions_max

    def replaced_by(self, connection: Connection, key: ChannelKey) -> list[Channel]:
        """Return the channels whose sessions have to end before one can begin.

        They are the former ones of that connection and of that channel.

        Raises:
            LimitError: the node has as many sessions as it takes.
        """
        known = self.by_connection.values()
        replaced = [each for each in known if each.connection == connection or each.key == key]
        if len(known) - len(replaced) >= self._sessions_max:
            raise LimitError("the node has all the sessions it takes", limit=self._sessions_max)
        return replaced

    def begin(self, channel: Channel) -> None:
        """Begin the session of a channel."""
        self.by_connection[channel.connection] = channel
        self._absent.pop(channel.key, None)

    def end(self, channel: Channel) -> None:
        """End the session of a channel, which may come back until it expires."""
        del self.by_connection[channel.connection]
        self._absent[channel.key] = channel.heard_s

    def forget(self, key: ChannelKey) -> None:
        """Expect a channel no longer."""
        self._absent.pop(key, None)

    def expired(self, *, now_s: float) -> list[tuple[ChannelKey, Channel | None]]:
        """Return the channels that were silent for too long, connected or not."""
        limit_s = now_s - EXPIRY_S
        known = self.by_connection.values()
        found: list[tuple[ChannelKey, Channel | None]] = [
            (channel.key, channel) for channel in known if channel.heard_s <= limit_s
        ]
        absent = [(key, None) for key, heard_s in self._absent.items() if heard_s <= limit_s]
        return found + absent
