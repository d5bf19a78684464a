"""Remote channels in the node's memory: the number of the last change, and the last answers.

Both are in shared memory: after the node was killed, a repeated request is still recognized and
gets the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.errors import LimitError, SegmentError
from smbox.memory import layout, orders
from smbox.memory.layout import CHANNEL_ROWS, Channel, Ring
from smbox.memory.segment import Segment, Word, attach_or_create, create_filled, size, unlink

ChannelKey = tuple[bytes, int]
"""The id of the client, 16 bytes, and its number of the channel."""

_CLIENT: Final = slice(Channel.CLIENT_LOW, Channel.CLIENT_HIGH + 1)
_RING_POWERS: Final = range(Ring.ENTRY_NBYTES_MIN.bit_length() - 1, 32)
"""Of the entries' size. Larger rings do not fit into any memory."""


@dataclass(eq=False)
class ChannelRow:
    """The row of one remote channel.

    Attributes:
        applied: number of the channel's last change.
        serial: unique number of this use of the row.
        generation: of the connection of the client's last HELLO.
        channel: the client's number of the channel.
        heard_s: time of the last message, in monotonic seconds; not in shared memory.

    Args:
        node: name of the memory node.
        index: of the row.
        words: ``u64[8]`` of the table.
        pinned_rings: see ``ChannelTable``.
    """

    node: str
    index: int
    words: NDArray[np.uint64]
    pinned_rings: set[int]
    heard_s: float = 0.0
    applied = Word(Channel.APPLIED)
    serial = Word(Channel.SERIAL)
    generation = Word(Channel.GENERATION)
    channel = Word(Channel.CHANNEL)

    @property
    def key(self) -> ChannelKey:
        """The client and its number of the channel."""
        return self.words[_CLIENT].tobytes(), self.channel

    def block(self, ring: int = 0, base: int = 0, entry_nbytes: int = 0) -> orders.Block:
        """Return the channel with its ring as ``struct channel``."""
        address = orders.address_of(self.words)
        return orders.block_of(address, self.index, ring, base, Ring.OLD_OFFSET, entry_nbytes)


class ChannelTable:
    """The table of all remote channels of a node; only the node writes it.

    It is created if it does not exist.

    Attributes:
        pinned_rings: ids of rings that a dead writer's slot still needs, because a stopped
            process holds the stripe to be undone. They are neither written nor removed.

    Args:
        node: name of the memory node.
    """

    def __init__(self, node: str) -> None:
        name, nbytes = layout.name_of(node, "channels"), CHANNEL_ROWS * Channel.NBYTES
        segment = attach_or_create(node, name, nbytes)
        self.pinned_rings: set[int] = set()
        self._node = node
        self._rows = segment.words(0, CHANNEL_ROWS * Channel.WORDS).reshape(-1, Channel.WORDS)
        used = np.flatnonzero(self._rows[:, Channel.USED])
        self._index = {row.key: row for row in map(self._row, used.tolist())}

    def _row(self, index: int) -> ChannelRow:
        return ChannelRow(self._node, index, self._rows[index], self.pinned_rings)

    def rows(self) -> list[ChannelRow]:
        """List the rows in use."""
        return list(self._index.values())

    def find(self, client_id: bytes, channel: int) -> ChannelRow | None:
        """Return the row of a channel, if it has one."""
        return self._index.get((client_id, channel))

    def claim(self, client_id: bytes, channel: int) -> ChannelRow:
        """Give a row to a channel that has none; its applied number is 0.

        Raises:
            LimitError: the table is full.
        """
        free = np.flatnonzero(self._rows[:, Channel.USED] == 0)
        if free.size == 0:
            raise LimitError("the node has no room for another channel", limit=CHANNEL_ROWS)
        row = self._row(int(free[0]))
        row.words[_CLIENT] = np.frombuffer(client_id, np.uint64)
        row.channel = channel
        row.generation = 0
        row.serial = int(self._rows[:, Channel.SERIAL].max()) + 1
        row.applied = 0
        row.words[Channel.USED] = 1
        self._index[client_id, channel] = row
        return row

    def release(self, row: ChannelRow) -> None:
        """Remove a channel and its answers."""
        row.words[Channel.USED] = 0
        self._index.pop(row.key, None)
        self.remove_rings(row)

    def remove_rings(self, row: ChannelRow) -> None:
        """Unlink the rings of a channel; the client has received the answers."""
        for ring in rings_of(self._node, row.serial):
            self._unlink(ring)

    def release_ring(self, ring: int) -> None:
        """Unpin a ring, and unlink it unless a channel uses it for its answers."""
        self.pinned_rings.discard(ring)
        serial = layout.ring_serial(ring)
        is_known = any(row.serial == serial for row in self.rows())
        if ring and not (is_known and rings_of(self._node, serial)[-1] == ring):
            self._unlink(ring)

    def _unlink(self, ring: int) -> None:
        if ring not in self.pinned_rings:
            unlink(layout.ring_name(self._node, ring))

    def apply_committed(self, row: int, serial: int, number: int) -> None:
        """Record a channel's change that is committed according to a dead writer's slot.

        The node does this before it reuses any row.

        Raises:
            SegmentError: there is no such row; the slot is damaged.
        """
        if row >= CHANNEL_ROWS:
            raise SegmentError("a journal slot is damaged", channel=row)
        words = self._rows[row]
        if words[Channel.USED] and int(words[Channel.SERIAL]) == serial:
            words[Channel.APPLIED] = max(int(words[Channel.APPLIED]), number)


class Answers:
    """The last answers of a channel, as commits output them; its client may request them again.

    The first answer creates a ring. An answer that is longer than its entries creates a larger
    ring, to which all answers are copied.

    Attributes:
        ring: id of the ring; 0: none yet.

    Args:
        row: of the channel.
    """

    def __init__(self, row: ChannelRow) -> None:
        self.ring = self._entry_nbytes = 0
        self._row = row
        self._block = row.block()
        self._heads = np.zeros((Ring.ENTRIES, Ring.HEAD_WORDS), np.uint64)
        self._old = np.zeros(0, np.uint8)
        for ring in rings_of(row.node, row.serial):  # a kill may leave a smaller one too
            self._use(ring, Segment.attach(layout.ring_name(row.node, ring)))

    def block_for(self, nbytes: int) -> orders.Block:
        """Return the ``struct channel`` for changes with answers of at most ``nbytes`` each.

        Raises:
            OutOfMemoryError: no room for a larger ring; nothing changed.
        """
        if self.ring in self._row.pinned_rings:
            nbytes = max(nbytes, 2 * self._entry_nbytes)  # a new ring
        if self._entry_nbytes < nbytes:
            self._grow(1 << max(nbytes - 1, Ring.ENTRY_NBYTES_MIN - 1).bit_length())
        return self._block

    def find(self, number: int, count: int = 1) -> NDArray[np.uint8] | None:
        """View the answers of ``count`` consecutive changes, the first of which is ``number``.

        The bytes are valid until the client has acknowledged them and sends further changes.

        Returns:
            ``u8[nbytes]``; None if an answer is missing or they are not contiguous.
        """
        entry, nbytes = (number - 1) % Ring.ENTRIES, 0  # numbers begin at 1
        if entry + count > Ring.ENTRIES:
            return None
        for ahead in range(count):
            head = self._heads[entry + ahead]
            if nbytes != ahead * self._entry_nbytes or head[Ring.NUMBER] != number + ahead:
                return None
            nbytes += int(head[Ring.ANSWER_NBYTES])
        begin = entry * self._entry_nbytes
        return self._old[begin : begin + nbytes]

    def _grow(self, entry_nbytes: int) -> None:
        row, former = self._row, self._entry_nbytes
        ring = layout.ring_id(row.serial, entry_nbytes)
        name = layout.ring_name(row.node, ring)
        with create_filled(row.node, name, layout.ring_nbytes(entry_nbytes)) as segment:
            heads, old = _parts(segment, entry_nbytes)
            heads[:] = self._heads
            entries = old.reshape(Ring.ENTRIES, entry_nbytes)
            entries[:, :former] = self._old.reshape(Ring.ENTRIES, former)
        self._use(ring, segment)

    def _use(self, ring: int, segment: Segment) -> None:
        """Switch to a larger ring with all answers; views of the former ring stay valid."""
        row, former = self._row, self.ring
        self.ring = ring
        self._entry_nbytes = layout.ring_entry_nbytes(ring)
        self._heads, self._old = _parts(segment, self._entry_nbytes)
        base = orders.address_of(segment.bytes)
        self._block = row.block(ring, base, self._entry_nbytes)
        if former not in {0, *row.pinned_rings}:
            unlink(layout.ring_name(row.node, former))


def _parts(segment: Segment, entry_nbytes: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """View the heads of a ring's entries, one row each, and the bytes of all entries."""
    heads = segment.words(0, Ring.ENTRIES * Ring.HEAD_WORDS)
    limit = Ring.OLD_OFFSET + Ring.ENTRIES * entry_nbytes
    return heads.reshape(Ring.ENTRIES, -1), segment.bytes[Ring.OLD_OFFSET : limit]


def rings_of(node: str, serial: int) -> list[int]:
    """List the ids of the rings of a channel, by its serial; small entries first.

    It opens no file, so that a node with too many open files removes rings too.
    """
    possible = [layout.ring_id(serial, 1 << power) for power in _RING_POWERS]
    return [ring for ring in possible if size(layout.ring_name(node, ring))]
