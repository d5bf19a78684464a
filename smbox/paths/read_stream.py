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
from smbox.wire.header import LONG_NBYTES_MAX, Buffer
from smbox.wire.messages import Welcome
from smbox.wire.ops import Op
from smbox.wire.plain import plain_version
from smbox.wire.session import ClientSession

FAST_NBYTES: Final = 1 << 20
"""Of a request where bytes come fast: 1 MiB was faster than a half, and than 2, 4 and 8."""

SLOW_NBYTES: Final = LONG_NBYTES_MAX
"""Of a request elsewhere: where eight clients share the cores, what counts is how many."""

FAST_NBYTES_S: Final = 1e9
"""Bytes a second from which on they come fast."""

SOON_S: Final = 0.02
"""How long a reply is waited for before the read stands in line, where patience is kept."""


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

    def part_from(self, unit: int) -> Part | None:
        """Return what is to be asked for at a unit; None: nothing, or not yet."""
        ...

    def take(self, part: Part, version: int, payload: Buffer) -> None:
        """Take the reply of a part, in order; again, after an interrupt."""
        ...


class ReadStream:
    """The requests of one read.

    Attributes:
        answered: how many were answered.
        taken_nbytes: what they brought.

    Args:
        read: it.
        address: of the region's first byte.
        unit: where the read stands; nothing of it is under way.
        lend_nbytes: where LENDs are cut.
    """

    def __init__(self, read: Streamed, address: int, unit: int, lend_nbytes: int) -> None:
        self.answered = 0
        self.taken_nbytes = 0
        self._read = read
        self._address = address
        self._unit = unit
        self._lend_nbytes = lend_nbytes
        self._open: deque[tuple[Part, bytes]] = deque()  # with the message that asks for it

    def open_requests(self) -> list[Request]:
        """List what is under way, in order."""
        return [decode_request([head]) for _, head in self._open]

    def run(
        self, transport: Transport, session: ClientSession, until_s: float, deadline_s: float
    ) -> list[Frame] | None:
        """Send and receive until all is read, or what was sent by ``until_s``.

        Nothing is waited for beyond the deadline.

        Returns:
            None: nothing is under way. A list: the message that came in place of a plain reply,
            or nothing in time; what is open has to stand in line.
        """
        offer = session.offer_reads()
        welcome = session.welcome
        if offer is None or welcome is None:
            return []
        read, opened, depth = self._read, self._open, self._depth(welcome)
        while True:
            now_s = time.monotonic()
            while now_s < until_s and len(opened) < depth:
                part = read.part_from(self._unit)
                if part is None or not self._may_open(part, welcome):
                    break
                head = self._head(part, *offer)
                if not transport.send([head]):
                    return []
                opened.append((part, head))
                self._unit = part.next_unit
            if not opened:
                return None
            left_s = deadline_s - now_s
            frames = None if left_s <= 0 else transport.receive(min(SOON_S, left_s))
            if frames is None:
                return []
            part, head = opened[0]
            nbytes = None if part.op is Op.STAMPS else part.limit - part.first
            version = plain_version(head, nbytes, frames)
            if version is None:
                return frames
            read.take(part, version, frames[1])
            opened.popleft()
            self.answered += 1
            self.taken_nbytes += len(frames[1])

    def _head(self, part: Part, ids: Iterator[int], fence: int) -> bytes:
        return header.pack(
            part.op,
            request=next(ids),
            number=fence,
            address=self._address + part.first,
            nbytes=part.limit - part.first,
        )

    def _depth(self, welcome: Welcome) -> int:
        """Return how many requests may be under way."""
        return max(1, min(welcome.lent_nbytes // self._lend_nbytes, welcome.window))

    def _may_open(self, part: Part, welcome: Welcome) -> bool:
        """Tell whether the node allows one more copy, if the part is one."""
        if part.op is not Op.GET or not self._open:
            return True
        copies = [each.limit - each.first for each, _ in self._open if each.op is Op.GET]
        return sum(copies) + part.limit - part.first <= welcome.answers_nbytes


def suited_nbytes(taken_nbytes: int, seconds: float) -> int:
    """Return where LENDs are best cut, after a stream that took so long for so much."""
    is_fast = taken_nbytes >= FAST_NBYTES_S * seconds
    return FAST_NBYTES if is_fast else SLOW_NBYTES
