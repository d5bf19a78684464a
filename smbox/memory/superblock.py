"""Who owns a node's memory, and the offset that has never been handed out."""

from __future__ import annotations

import logging
import secrets
from functools import partial
from typing import Self

import numpy as np

from smbox.address import OFFSET_BITS, OFFSET_MAX
from smbox.errors import OutOfMemoryError, SegmentError
from smbox.memory import layout, process
from smbox.memory.layout import RegionHeader, RegionState, Superblock
from smbox.memory.locks import LockFile, take_node_lock
from smbox.memory.segment import (
    NoSegmentError,
    Segment,
    Word,
    attach_or_create,
    listing,
    unlink,
)

_LOG = logging.getLogger(__name__)


class NodeOwnedError(SegmentError):
    """Another living process owns the memory of this name; nothing was changed."""


class OwnedSuperblock:
    """The superblock, held by the one node that owns it.

    Attributes:
        node_id: the upper bits of the node's global addresses.
        incarnation: how often a node has opened this memory.
        memory_nbytes: most bytes that the node may use.

    Args:
        node: name of the node.
        segment: its segment.
        locks: the open file that holds the owner's lock.
        found: names of the node's memory that were there before, the lock file aside.
    """

    node_id = Word(Superblock.NODE_ID)
    incarnation = Word(Superblock.INCARNATION)
    memory_nbytes = Word(Superblock.MEMORY_NBYTES)

    def __init__(
        self, node: str, segment: Segment, locks: LockFile, found: frozenset[str]
    ) -> None:
        self.segment = segment
        self.locks = locks
        self._node = node
        self._found = found
        self.words = segment.words(0, Superblock.WORDS)

    @classmethod
    def own(cls, node: str, memory_nbytes: int, node_id: int = 0) -> Self:
        """Take the memory of ``node``, or make it.

        Raises:
            NodeOwnedError: a living node owns it.
            SegmentError: it is of another format or node id; nothing is touched.
        """
        locks = _take_lock(node)
        try:
            found = frozenset(listing(f"{layout.PREFIX}{node}.")) - {layout.locks_name(node)}
            owned = cls(node, _open_or_make(node, node_id), locks, found)
        except BaseException:
            locks.close()
            raise
        owned.memory_nbytes = memory_nbytes
        owned.words[[Superblock.PID, Superblock.PID_STARTED]] = process.identity()
        owned.incarnation += 1
        return owned

    @property
    def uuid(self) -> bytes:
        """16 bytes that name this memory; another memory has others."""
        return self.words[Superblock.UUID_LOW : Superblock.UUID_HIGH + 1].tobytes()

    @property
    def high_water(self) -> int:
        """The global address behind the last one that was handed out."""
        return self.node_id << OFFSET_BITS | int(self.words[Superblock.HIGH_WATER])

    @property
    def first_address(self) -> int:
        """The first global address that was handed out."""
        return self.node_id << OFFSET_BITS | int(self.words[Superblock.FIRST_OFFSET])

    def take_address(self, nbytes: int) -> int:
        """Hand out a page-aligned global address that never was and never will be another's.

        Raises:
            OutOfMemoryError: 2**48 bytes of addresses are used up.
        """
        offset = int(self.words[Superblock.HIGH_WATER])
        limit = offset + layout.align(max(nbytes, 1))
        if limit > OFFSET_MAX:
            raise OutOfMemoryError("the node's addresses are used up; start another node")
        self.words[Superblock.HIGH_WATER] = limit
        return self.node_id << OFFSET_BITS | offset

    def mark_stopping(self) -> None:
        """Note that the removal of this memory has begun."""
        self.words[Superblock.STOPPING] = 1

    def undo(self) -> None:
        """Remove what a start has made that is refused; what it found stays."""
        for segment_name in (layout.channels_name, layout.cookie_name, layout.node_name):
            if segment_name(self._node) not in self._found:
                unlink(segment_name(self._node))
        if not self._found:
            unlink(layout.locks_name(self._node))

    def close(self) -> None:
        """Let the memory go, as it is, for the next owner."""
        self.words[Superblock.PID] = 0
        self.words = self.words[:0].copy()
        self.segment.close()
        self.locks.close()


def owner_pid(node: str) -> int:
    """Return the pid that the superblock of ``node`` names, or 0."""
    return _read(node)[Superblock.PID]


def is_stopping(node: str) -> bool:
    """Tell whether the removal of a node's memory has begun; it is not to be used again."""
    words = _read(node)
    known = (words[Superblock.MAGIC], words[Superblock.FORMAT])
    return known == (Superblock.MAGIC_VALUE, layout.FORMAT) and words[Superblock.STOPPING] != 0


def _read(node: str) -> list[int]:
    """Read the words of a node's superblock: zeros where it cannot be read."""
    try:
        with Segment.attach(layout.node_name(node)) as segment:
            return [int(word) for word in segment.words(0, Superblock.WORDS)]
    except SegmentError:
        return [0] * Superblock.WORDS


def remove_all(node: str) -> None:
    """Remove all memory of a node that no process serves, so that it is all or nothing.

    First the superblock says so: who is killed from there on leaves memory that nobody takes
    for a node's, and whose removal the next start, or ``smbox gc``, ends. Then every region is
    marked as freed, for clients that map it; then the names go, also of what is damaged or not
    to be trusted, and so cannot be marked.
    """
    try:
        with Segment.attach(layout.node_name(node)) as segment:
            segment.words(0, Superblock.WORDS)[Superblock.STOPPING] = 1
    except NoSegmentError:  # of a removal that was killed at its end
        pass
    except SegmentError:
        _LOG.exception("that node %r stops cannot be noted", node)
    for name in listing(layout.region_name(node, 0)[:-12]):
        _mark_freed(name)
    unlink_all(node)


def _mark_freed(name: str) -> None:
    try:
        with Segment.attach(name) as segment:
            words = segment.words(0, RegionHeader.WORDS)
            known = [RegionHeader.MAGIC_VALUE, layout.FORMAT]
            if words[[RegionHeader.MAGIC, RegionHeader.FORMAT]].tolist() == known:
                words[RegionHeader.STATE] = RegionState.FREED
    except SegmentError:
        _LOG.exception("clients that map %s are not told that it is gone", name)


def unlink_all(node: str) -> None:
    """Remove the names of all memory of a node that serves nobody any more.

    The superblock goes when nothing else is left, so that whoever is killed in here leaves
    memory that tells whose it was; the lock file goes last, so that no other node begins to
    make memory of this name before the old one is gone.
    """
    last = (layout.node_name(node), layout.locks_name(node))
    for name in listing(f"{layout.PREFIX}{node}."):
        if name not in last:
            unlink(name)
    for name in last:
        unlink(name)


def _take_lock(node: str) -> LockFile:
    """Take the node's lock; a removal of its memory that was cut off is ended first."""
    while True:
        locks = take_node_lock(node)
        if locks is None:
            raise NodeOwnedError(
                f"node {node!r} is running; stop it, or choose another --name",
                pid=owner_pid(node),
            )
        try:
            if not is_stopping(node):
                return locks
            remove_all(node)  # and the lock file with it: another one is made
        except BaseException:
            locks.close()
            raise
        locks.close()


def _open_or_make(node: str, node_id: int) -> Segment:
    """Map the superblock of a node, or make it; refuse one that is another's."""
    fill = partial(_fill, node_id=node_id)
    segment = attach_or_create(node, layout.node_name(node), Superblock.NBYTES, fill)
    words = segment.words(0, Superblock.WORDS)
    if words[Superblock.MAGIC] != Superblock.MAGIC_VALUE:
        raise SegmentError(f"{segment.name} is no superblock of smbox; remove or rename it")
    known = (layout.FORMAT, layout.STRIPE_NBYTES)
    found = (int(words[Superblock.FORMAT]), int(words[Superblock.STRIPE_NBYTES]))
    if found != known:
        raise SegmentError(
            f"the memory of node {node!r} has another format; use the smbox release that made"
            " it, or choose another --name",
            found=found,
            known=known,
        )
    if int(words[Superblock.NODE_ID]) != node_id:
        raise SegmentError(
            f"the memory of node {node!r} has addresses of another node id; start it with"
            " --node-id as before, or choose another --name",
            found=int(words[Superblock.NODE_ID]),
            wanted=node_id,
        )
    return segment


def _fill(segment: Segment, node_id: int) -> None:
    words = segment.words(0, Superblock.WORDS)
    words[Superblock.MAGIC] = Superblock.MAGIC_VALUE
    words[Superblock.FORMAT] = layout.FORMAT
    words[Superblock.NODE_ID] = node_id
    words[Superblock.STRIPE_NBYTES] = layout.STRIPE_NBYTES
    first = layout.FIRST_OFFSET_UNIT * (1 + secrets.randbelow(layout.FIRST_OFFSETS))
    words[Superblock.FIRST_OFFSET] = words[Superblock.HIGH_WATER] = first
    words[Superblock.UUID_LOW : Superblock.UUID_HIGH + 1] = np.frombuffer(
        secrets.token_bytes(16), np.uint64
    )
