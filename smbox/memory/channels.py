"""What the node remembers of its remote channels: the last number applied, and answers.

Both live in shared memory, so that a request that is repeated after the node was killed is
still known, and still gets the same answer.
"""

from __future__ import annotations

import secrets
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.errors import LimitError
from smbox.memory import layout
from smbox.memory.layout import CHANNEL_ROWS, STRIPE_NBYTES, Channel, Ring, ring_entry
from smbox.memory.segment import NoSegmentError, Segment, unlink

_LOW_WORD = (1 << 64) - 1
_APPLIED: Final = Channel.APPLIED


class ChannelRow:
    """The row of one remote channel.

    Args:
        index: its place in the table.
        words: ``u64[8]`` of the table.
    """

    def __init__(self, index: int, words: NDArray[np.uint64]) -> None:
        self.index = index
        self.words = words

    @property
    def applied(self) -> int:
        """Number of the last change that was applied for this channel."""
        applied: int = self.words.item(_APPLIED)  # a third of what int() of an element takes
        return applied

    @applied.setter
    def applied(self, number: int) -> None:
        self.words[Channel.APPLIED] = number

    @property
    def client_id(self) -> int:
        """The 128-bit id of the client."""
        return int(self.words[Channel.CLIENT_HIGH]) << 64 | int(self.words[Channel.CLIENT_LOW])

    @property
    def channel(self) -> int:
        """The client's number of this channel."""
        return int(self.words[Channel.CHANNEL])


class ChannelTable:
    """The table of all remote channels of a node; only its owner writes rows.

    Args:
        segment: the table's segment.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._rows = segment.words(0, CHANNEL_ROWS * Channel.WORDS).reshape(-1, Channel.WORDS)
        self._index = {
            (row.client_id, row.channel): row
            for row in (ChannelRow(at, self._rows[at]) for at in self._used())
        }

    @classmethod
    def open(cls, node: str) -> Self:
        """Map the table of a node, or make it."""
        name = layout.channels_name(node)
        try:
            segment = Segment.attach(name)
        except NoSegmentError:
            segment = Segment.create_whole(name, _aside(node), CHANNEL_ROWS * Channel.NBYTES)
        return cls(segment)

    @staticmethod
    def note(node: str, row: int, number: int) -> None:
        """Write down, from any process, that a row's change ``number`` was applied."""
        with Segment.attach(layout.channels_name(node)) as table:
            words = table.words(row * Channel.NBYTES, Channel.WORDS)
            words[Channel.APPLIED] = max(int(words[Channel.APPLIED]), number)

    def __len__(self) -> int:
        return len(self._index)

    def rows(self) -> list[ChannelRow]:
        """List the rows in use."""
        return list(self._index.values())

    def find(self, client_id: int, channel: int) -> ChannelRow | None:
        """Return the row of a channel, if it has one."""
        return self._index.get((client_id, channel))

    def claim(self, client_id: int, channel: int) -> ChannelRow:
        """Return the row of a channel; a new one begins with nothing applied.

        Raises:
            LimitError: the table is full.
        """
        row = self.find(client_id, channel)
        if row is not None:
            return row
        free = np.flatnonzero(self._rows[:, Channel.USED] == 0)
        if free.size == 0:
            raise LimitError("the node has no room for another channel", limit=CHANNEL_ROWS)
        row = ChannelRow(int(free[0]), self._rows[int(free[0])])
        row.words[Channel.CLIENT_LOW] = client_id & _LOW_WORD
        row.words[Channel.CLIENT_HIGH] = client_id >> 64
        row.words[Channel.CHANNEL] = channel
        row.applied = 0
        row.words[Channel.USED] = 1
        self._index[client_id, channel] = row
        return row

    def release(self, row: ChannelRow, node: str) -> None:
        """Forget a channel and its answers."""
        row.words[Channel.USED] = 0
        self._index.pop((row.client_id, row.channel), None)
        unlink(layout.ring_name(node, row.index))

    def close(self) -> None:
        """Drop the mapping."""
        self._index.clear()
        self._rows = self._rows[:0].copy()
        self.segment.close()

    def _used(self) -> list[int]:
        return [int(at) for at in np.flatnonzero(self._rows[:, Channel.USED])]


class RingFile:
    """The old bytes of a channel's last answers.

    Attributes:
        words: all of it, as ``u64``.

    Args:
        segment: the ring's segment.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.words: NDArray[np.uint64] = segment.words(0, Ring.NBYTES // layout.WORD_NBYTES)
        self._headers = segment.words(0, Ring.ENTRIES * Ring.HEADER_WORDS).reshape(
            Ring.ENTRIES, Ring.HEADER_WORDS
        )

    @classmethod
    def open(cls, node: str, row: int) -> Self:
        """Map the ring of a row of the table, or make it.

        Raises:
            OutOfMemoryError: no room for it; nothing changed.
        """
        name = layout.ring_name(node, row)
        try:
            return cls(Segment.attach(name))
        except NoSegmentError:
            return cls(Segment.create_whole(name, _aside(node), Ring.NBYTES))

    def header(self, number: int) -> NDArray[np.uint64]:
        """View the header words of the entry of ``number``."""
        header: NDArray[np.uint64] = self._headers[ring_entry(number)]
        return header

    def old(self, number: int) -> NDArray[np.uint8]:
        """View the room for old bytes of the entry of ``number``: ``u8[STRIPE_NBYTES]``."""
        return self._old(ring_entry(number), STRIPE_NBYTES)

    def answers(self, number: int, count: int = 1) -> NDArray[np.uint8] | None:
        """View what ``count`` changes from ``number`` on answered, one behind the other.

        The bytes stay until the client sends changes that follow the acknowledgement of these.

        Returns:
            ``u8[nbytes]``; None if one had no answer, or they do not lie side by side.
        """
        if not are_together(number, count):
            return None
        entry, nbytes = ring_entry(number), 0
        for ahead in range(count):
            header = self._headers[entry + ahead]
            if nbytes != ahead * STRIPE_NBYTES or header[Ring.NUMBER] != number + ahead:
                return None
            nbytes += int(header[Ring.RESULT_NBYTES])
        return self._old(entry, nbytes)

    def close(self) -> None:
        """Drop the mapping."""
        self.words = self.words[:0].copy()
        self._headers = self._headers[:0].copy()
        self.segment.close()

    def _old(self, entry: int, nbytes: int) -> NDArray[np.uint8]:
        begin = Ring.OLD_OFFSET + entry * STRIPE_NBYTES
        return self.segment.bytes[begin : begin + nbytes]


def are_together(number: int, count: int) -> bool:
    """Tell whether the answers of ``count`` changes from ``number`` on lie side by side."""
    return ring_entry(number) + count <= Ring.ENTRIES


def _aside(node: str) -> str:
    return layout.building_name(node, secrets.randbits(64))
