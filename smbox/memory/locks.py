"""Who holds locks of a memory node, and who of them lives.

The lock of a stripe is a word of shared memory with the id of its holder: it needs no system
call. A holder is an open lock file. While it lives, it has locked the byte of its id there:
an open-file-description lock of Linux, which belongs to the open file, not to a process or
thread. The kernel releases it when the last descriptor of the open file is closed. A killed
holder therefore blocks nobody, as it would with a POSIX semaphore: whoever finds the byte free
takes over the lock of the stripe. Ids are random and not used again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
import weakref
from typing import Final

from smbox.errors import PeerLostError
from smbox.memory import layout
from smbox.memory.orders import Block
from smbox.memory.segment import open_trusted

# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for OFD locks)
_FLOCK: Final = struct.Struct("hh4xqqi4x")
assert _FLOCK.size == 32

_OPEN: weakref.WeakSet[LockFile] = weakref.WeakSet()
_OPENING: Final = threading.RLock()
"""Held while a file is opened and added to ``_OPEN``; a fork waits for it."""


class LockFile:
    """A holder of locks: one open file of a node's lock file. Threads must not share it.

    In a forked child the file is closed, and the holder has no id. The child may be inside a
    call of its parent, if a signal handler forked it: then no lock can be taken any more.

    Attributes:
        fd: the descriptor; -1: closed.
        word: the id, for the native library; 0: closed.
        ref: the address of the id, as an argument of a native function.

    Args:
        node: name of the memory node.
        create: create the file if it is missing.

    Raises:
        SegmentError: the lock file does not exist, cannot be opened or is not trusted.
    """

    def __init__(self, node: str, *, create: bool = False) -> None:
        owner = os.getpid()
        with _OPENING:
            self.fd = open_trusted(layout.name_of(node, "locks"), os.O_CREAT if create else 0)
            # Garbage collection closes the file too: the holder then counts as dead.
            self._closing = weakref.finalize(self, os.close, self.fd)
            self._closing.atexit = False
            self.word = Block(8)
            self.ref = self.word.ref
            while not self.id:
                number = secrets.randbits(59) | 1
                if self.try_lock(layout.LockByte.HOLDERS + number):
                    self.word.words[0] = number
            _OPEN.add(self)
        if os.getpid() != owner:  # a signal handler has forked meanwhile
            self.close()

    @property
    def id(self) -> int:
        """The id, odd and below 2**59; 0: closed."""
        return self.word.words[0]

    def check_own(self) -> None:
        """Raise PeerLostError in a forked child whose parent has opened this file."""
        if self.fd < 0:
            message = "this call belongs to the parent of this forked child"
            raise PeerLostError(message, outcome="unknown")

    def try_lock(self, byte: int) -> bool:
        """Lock one byte without waiting; return whether this file holds the lock.

        Raises:
            PeerLostError: this is a forked child, and the file its parent's.
        """
        self.check_own()
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, request)
        except BlockingIOError:
            return False
        return True

    def is_held(self, byte: int) -> bool:
        """Return whether another open file holds the lock of this byte; raises as above."""
        self.check_own()
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, request)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def is_alive(self, holder: int) -> bool:
        """Return whether a holder lives; no id is 2**60 or more. Raises as above."""
        byte = layout.LockByte.HOLDERS + holder
        return holder == self.id or (holder < layout.LockByte.NODE and self.is_held(byte))

    def close(self) -> None:
        """Close the file; its locks end with its last descriptor (a forked child's too)."""
        self.word.words[0] = 0
        self.fd = -1
        self._closing()


def _close_all() -> None:
    """Close the parent's lock files in a forked child: the locks must end with the parent.

    A child that a signal handler forked may return into a call of its parent. The call ends
    there, because its holder has no id.
    """
    _OPENING.release()
    for locks in list(_OPEN):
        locks.close()


os.register_at_fork(
    before=_OPENING.acquire, after_in_parent=_OPENING.release, after_in_child=_close_all
)


def take_node_lock(node: str) -> LockFile | None:
    """Take the lock under which a node's memory is opened or removed.

    A process that removes the memory removes the lock file last, while it holds the lock. A
    process that opened the file before that would lock a file without a name. That is therefore
    checked under the lock.

    Returns:
        The open file with the lock, which the caller closes; None if another process holds it.

    Raises:
        SegmentError: the lock file cannot be created or opened.
    """
    while True:
        locks = LockFile(node, create=True)  # garbage collection closes it if not returned
        if not locks.try_lock(layout.LockByte.NODE):
            return None
        if os.fstat(locks.fd).st_nlink:  # the file still has its name
            return locks
