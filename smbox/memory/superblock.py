"""The superblock of a node's memory: its owner, its next free offset, and its removal."""

from __future__ import annotations

import logging
import secrets
from contextlib import closing
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
    """Another running process owns the memory of this name; nothing was changed."""


class OwnedSuperblock:
    """The superblock of a memory that this process owns.

    Attributes:
        node_id: the upper bits of the node's global addresses.
        incarnation: how often a node has opened this memory.
        memory_nbytes: maximum bytes of the node's memory.

    Args:
        node: name of the node.
        segment: its segment.
        locks: the open lock file that holds the node's lock.
        found: the node's segments that existed before, without the lock file.
    """

    node_id = Word(Superblock.NODE_ID)
    incarnation = Word(Superblock.INCARNATION)
    memory_nbytes = Word(Superblock.MEMORY_NBYTES)

    def __init__(
        self, node: str, segment: Segment, locks: LockFile, found: frozenset[str]
    ) -> None:
        self.locks = locks
        self._node = node
        self._found = found
        self.words = segment.words(0, Superblock.WORDS)

    @classmethod
    def own(cls, node: str, memory_nbytes: int, node_id: int = 0) -> Self:
        """Take ownership of the memory of ``node``, or create it.

        Raises:
            NodeOwnedError: a running node owns it.
            SegmentError: it has another format or node id; nothing was changed.
            OutOfMemoryError: /dev/shm is full; nothing is left of a new memory.
        """
        locks = _take_lock(node)
        found: frozenset[str] | None = None
        try:
            found = frozenset(listing(layout.name_of(node))) - {layout.name_of(node, "locks")}
            owned = cls(node, _attach_or_create(node, node_id), locks, found)
        except BaseException:
            if found == frozenset():
                unlink(layout.name_of(node, "locks"))
            locks.close()
            raise
        owned.memory_nbytes = memory_nbytes
        owned.words[[Superblock.PID, Superblock.PID_STARTED]] = process.identity()
        owned.incarnation += 1
        return owned

    @property
    def uuid(self) -> bytes:
        """The 16 random bytes that identify this memory."""
        return self.words[Superblock.UUID_LOW : Superblock.UUID_HIGH + 1].tobytes()

    @property
    def high_water(self) -> int:
        """The end of the allocated global addresses."""
        return self.node_id << OFFSET_BITS | int(self.words[Superblock.HIGH_WATER])

    @property
    def first_address(self) -> int:
        """The first global address of this memory."""
        return self.node_id << OFFSET_BITS | int(self.words[Superblock.FIRST_OFFSET])

    def take_address(self, nbytes: int) -> int:
        """Allocate a page-aligned global address, which is never reused.

        Raises:
            OutOfMemoryError: all offsets of the node (2**48) are used up.
        """
        offset = int(self.words[Superblock.HIGH_WATER])
        limit = offset + layout.align(max(nbytes, 1))
        if limit > OFFSET_MAX:
            raise OutOfMemoryError("the node's addresses are used up; start another node")
        self.words[Superblock.HIGH_WATER] = limit
        return self.node_id << OFFSET_BITS | offset

    def mark_stopping(self) -> None:
        """Record that the removal of this memory has begun."""
        self.words[Superblock.STOPPING] = 1

    def abandon(self) -> None:
        """End the ownership after a failed start; remove only the segments that it created."""
        for part in ("channels", "cookie", "node"):
            if layout.name_of(self._node, part) not in self._found:
                unlink(layout.name_of(self._node, part))
        if not self._found:
            unlink(layout.name_of(self._node, "locks"))
        self.close()

    def close(self) -> None:
        """End the ownership in order; the memory stays for the next owner."""
        self.words[Superblock.PID] = 0
        self.locks.close()


def is_stopping(node: str) -> bool:
    """Return whether the removal of a node's memory has begun: nobody may use it again."""
    words = _read(node)
    known = (words[Superblock.MAGIC], words[Superblock.FORMAT])
    return known == (Superblock.MAGIC_VALUE, layout.FORMAT) and words[Superblock.STOPPING] != 0


def _read(node: str) -> list[int]:
    """Return the words of a node's superblock; zeros if it cannot be read."""
    try:
        segment = Segment.attach(layout.name_of(node, "node"))
        return [int(word) for word in segment.words(0, Superblock.WORDS)]
    except SegmentError:
        return [0] * Superblock.WORDS


def remove_all(node: str) -> None:
    """Remove all memory of a node that does not run.

    First the superblock is marked. If this process is killed after that, no node uses the
    memory again, and the next start or ``smbox gc`` completes the removal. Then every region is
    marked as freed, for clients that map it. Then all names are removed, also those of damaged
    or untrusted segments, which cannot be marked.
    """
    try:
        segment = Segment.attach(layout.name_of(node, "node"))
        segment.words(0, Superblock.WORDS)[Superblock.STOPPING] = 1
    except NoSegmentError:  # a removal was killed just before its end
        pass
    except SegmentError:
        _LOG.exception("the superblock of node %r cannot be marked as stopping", node)
    for name in listing(layout.name_of(node, "region.")):
        _mark_freed(name)
    unlink_all(node)


def _mark_freed(name: str) -> None:
    try:
        words = Segment.attach(name).words(0, RegionHeader.WORDS)
        known = [RegionHeader.MAGIC_VALUE, layout.FORMAT]
        if words[[RegionHeader.MAGIC, RegionHeader.FORMAT]].tolist() == known:
            words[RegionHeader.STATE] = RegionState.FREED
    except SegmentError:
        _LOG.exception("%s cannot be marked as freed for the clients that map it", name)


def unlink_all(node: str) -> None:
    """Remove the names of all memory of a node that has stopped.

    The superblock is removed after all other segments: if this process is killed meanwhile, the
    rest still names its node. The lock file is removed last: no other node can create memory of
    this name before the old one is removed.
    """
    last = (layout.name_of(node, "node"), layout.name_of(node, "locks"))
    for name in listing(layout.name_of(node)):
        if name not in last:
            unlink(name)
    for name in last:
        unlink(name)


def _take_lock(node: str) -> LockFile:
    """Take the node's lock; complete an interrupted removal of its memory first."""
    while (locks := take_node_lock(node)) is not None:
        if not is_stopping(node):  # garbage collection closes the file if this fails
            return locks
        with closing(locks):
            remove_all(node)  # removes the lock file too: take the lock of a new one
    message = f"node {node!r} is running; stop it, or choose another --name"
    raise NodeOwnedError(message, pid=_read(node)[Superblock.PID])


def _attach_or_create(node: str, node_id: int) -> Segment:
    """Map the superblock of a node, or create it; reject another format or node id."""
    fill = partial(_fill, node_id=node_id)
    segment = attach_or_create(node, layout.name_of(node, "node"), Superblock.NBYTES, fill)
    words = segment.words(0, Superblock.WORDS)
    if words[Superblock.MAGIC] != Superblock.MAGIC_VALUE:
        raise SegmentError(f"{segment.name} is not a superblock of smbox; remove or rename it")
    found = int(words[Superblock.FORMAT])
    if found != layout.FORMAT:
        raise SegmentError(
            f"the memory of node {node!r} has another format; use the smbox release that made"
            " it, or choose another --name",
            found=found,
            known=layout.FORMAT,
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
    first = layout.FIRST_OFFSET_UNIT * (1 + secrets.randbelow(layout.FIRST_OFFSETS))
    words[Superblock.FIRST_OFFSET] = words[Superblock.HIGH_WATER] = first
    words[Superblock.UUID_LOW : Superblock.UUID_HIGH + 1] = np.frombuffer(
        secrets.token_bytes(16), np.uint64
    )
