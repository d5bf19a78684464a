"""A lent read that somebody waits for from its beginning: it moves ahead of the line.

It is begun by who waits, not before: until then nothing of it is sent, and nothing in line.
"""

from __future__ import annotations

from smbox.paths.lent_read import LentRead
from smbox.paths.link_work import WorkCall
from smbox.paths.read_stream import Part, ReadStream
from smbox.wire.codec import Request
from smbox.wire.header import LONG_NBYTES_MAX, Buffer
from smbox.wire.ops import Op


class StreamedRead(LentRead):
    """A LentRead that is not begun; the same Args."""

    def advance(self, deadline_s: float) -> bool:
        """Move ahead of the line, then in it; see ``Work``."""
        if not self.is_done:
            self._link.stream(self, deadline_s)
        return super().advance(deadline_s)

    def stream(self, lend_nbytes: int) -> ReadStream:
        """Make a stream of what is left of it; see ``StreamWork``."""
        self._lend_nbytes = lend_nbytes
        return ReadStream(self, self._address, self._at, lend_nbytes)

    def take(self, part: Part, version: int, payload: Buffer) -> None:
        """Take the reply of the next part; see ``Streamed``."""
        if part.op is Op.LEND:
            self._stamps[part.first] = version
        self._take(self._at, part.next_unit, payload)
        self._at = part.next_unit
        self.is_done = self._at >= self._limit

    def adopt(self, request: Request) -> WorkCall:
        """Go on with the next request of the stream; see ``LoneWork``."""
        first = self._next()
        part = self.part_from(first)
        assert part is not None, "it was asked for"
        call = WorkCall(request, work=self, first=first, limit=part.next_unit)
        self._calls.append(call)
        return call

    def _call(self, first: int) -> WorkCall | None:
        self._lend_nbytes = LONG_NBYTES_MAX  # in line the number of requests counts
        return super()._call(first)
