"""Byte locks of a memory node, as Linux open-file-description locks.

An OFD lock belongs to an open file, not to a process or thread: each writer opens its own.
The kernel releases it when the last descriptor of that open file goes, so a killed holder
never blocks anybody for good (a POSIX semaphore would).
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from typing import Final

from smbox.memory import layout
from smbox.memory.segment import DIRECTORY, open_trusted

# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for OFD locks)
_FLOCK: Final = struct.Struct("hh4xqqi4x")
assert _FLOCK.size == 32

_OPEN: weakref.WeakSet[LockFile] = weakref.WeakSet()


class LockFile:
    """One open file description of a node's lock file; not to be shared by threads.

    Args:
        node: name of the memory node.
        create: make the file if it is missing.

    Raises:
        SegmentError: the node has no lock file, or it may not be opened or trusted.
    """

    def __init__(self, node: str, *, create: bool = False) -> None:
        name = layout.locks_name(node)
        self._path = DIRECTORY / name
        self.fd = open_trusted(name, os.O_CREAT if create else 0)
        # Forgotten without an end, its locks go too: a writer's slot is then a dead one's.
        self._closing = weakref.finalize(self, os.close, self.fd)
        self._closing.atexit = False
        _OPEN.add(self)

    def try_lock(self, byte: int) -> bool:
        """Lock one byte if nobody else holds it; True if this file holds it now."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, request)
        except BlockingIOError:
            return False
        return True

    def unlock(self, byte: int, count: int = 1) -> None:
        """Release ``count`` bytes from ``byte``."""
        request = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, count, 0)
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, request)

    def is_held(self, byte: int) -> bool:
        """Tell whether another open file holds this byte."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, request)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def is_in_place(self) -> bool:
        """Tell whether this is still the file that others find under the node's name."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self.fd))

    def close(self) -> None:
        """Close the file; its locks go with its last descriptor (a forked child's too)."""
        self.fd = -1
        self._closing()


def _close_all() -> None:
    """Let a forked child hold no open file of its parent's, so that locks die with that."""
    for locks in list(_OPEN):
        locks.close()


os.register_at_fork(after_in_child=_close_all)


def take_node_lock(node: str) -> LockFile | None:
    """Take the lock that whoever opens or removes a node's memory holds.

    Whoever removes the memory ends by removing this file, while it holds the lock. One that had
    opened the file before would then get the lock of a file that nobody else finds: under the
    lock, the path is looked at again.

    Returns:
        The open file with the lock, to be closed by the caller; None if somebody else has it.

    Raises:
        SegmentError: the lock file may not be made or opened.
    """
    while True:
        locks = LockFile(node, create=True)  # one that is not returned is forgotten
        if not locks.try_lock(layout.LockByte.NODE):
            return None
        if locks.is_in_place():
            return locks
