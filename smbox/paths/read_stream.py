"""A long read that is alone on its link: many requests under way, and little kept of each.

In line a request costs a call, a place in the window and a turn: 80 us of the 600 that 2 MiB
take, because the bytes have swept the caches. So while a read is all that there is to do, and
its plain replies come soon and in order, its requests are only remembered; and being cheap they
are smaller, so that what one brings is still in a cache when it is copied. Whatever else
comes, the requests under way stand in line from then on. They take no numbers: one that is
forgotten, by an interrupt, is nothing but bytes that nobody waits for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from smbox.transports.base import Frame, Transport
from smbox.wire import header
from smbox.wire.codec import Request, decode_request
from smbox.wire.header import REQUEST_NBYTES_MAX, Buffer
from smbox.wire.messages import Welcome
from smbox.wire.ops import Op
from smbox.wire.plain import plain_version
from smbox.wire.session import ClientSession

UNIT_NBYTES: Final = REQUEST_NBYTES_MAX
"""Of a request: 1 MiB was faster than a half, and than 2, 4 and 8."""

DEPTH: Final = 8
"""Requests under way, if the node allows as many; 4 and 16 were no faster."""

SOON_S: Final = 0.02
"""How long a reply is waited for before the read stands in line, where timeouts are known."""


class Part(NamedTuple):
    """What a request of a read asks for.

    Args:
        op: LEND, GET or STAMPS.
        first: byte of the region's data where its range begins.
        limit: byte behind the range.
        next_unit: of the read, where the next part begins.
    """

    op: Op
    first: int
    limit: int
    next_unit: int


class Streamed(Protocol):
    """What a stream asks of the read that it moves."""

    def part_from(self, unit: int, lend_nbytes: int) -> Part | None:
        """Return what is to be asked for at a unit; None: nothing, or not yet."""
        ...

    def take(self, part: Part, version: int, payload: Buffer) -> None:
        """Take the reply of a part, in order; again, after an interrupt."""
        ...


class ReadStream:
    """The requests of one read.

    Attributes:
        answered: how many were answered.

    Args:
        read: it.
        address: of the region's first byte.
        unit: where the read stands; nothing of it is under way.
    """

    def __init__(self, read: Streamed, address: int, unit: int) -> None:
        self.answered = 0
        self._read = read
        self._address = address
        self._unit = unit
        self._open: deque[tuple[Part, bytes]] = deque()  # with the message that asks for it

    def open_requests(self) -> list[Request]:
        """List what is under way, in order."""
        return [decode_request([head]) for _, head in self._open]

    def run(
        self, transport: Transport, session: ClientSession, until_s: float
    ) -> list[Frame] | None:
        """Send and receive until all is read, or what was sent by ``until_s``.

        Returns:
            None: nothing is under way. A list: the message that came in place of a plain reply,
            or nothing in time; what is open has to stand in line.
        """
        offer = session.offer_reads()
        if offer is None:
            return []
        read, opened, depth = self._read, self._open, _depth(session.welcome)
        while True:
            while len(opened) < depth and time.monotonic() < until_s:
                part = read.part_from(self._unit, UNIT_NBYTES)
                if part is None:
                    break
                head = self._head(part, *offer)
                if not transport.send([head]):
                    return []
                opened.append((part, head))
                self._unit = part.next_unit
            if not opened:
                return None
            frames = transport.receive(SOON_S)
            if frames is None:
                return []
            part, head = opened[0]
            version = plain_version(head, frames)
            if version is None:
                return frames
            read.take(part, version, frames[1])
            opened.popleft()
            self.answered += 1

    def _head(self, part: Part, ids: Iterator[int], fence: int) -> bytes:
        return header.pack(
            part.op,
            request=next(ids),
            number=fence,
            address=self._address + part.first,
            nbytes=part.limit - part.first,
        )


def _depth(welcome: Welcome | None) -> int:
    """Return how many requests the node allows under way, at most DEPTH."""
    if welcome is None:
        return 1
    return max(1, min(DEPTH, welcome.window, welcome.lent_nbytes // UNIT_NBYTES))
