"""Mapping a file of /dev/shm where the processor reads it fastest.

Pages of 4 KiB cost a large region a sixth of its speed: address translations, and a prefetcher
that stops at every page's end. So a mapping of 2 MiB and more begins at a multiple of that, and
its pages are asked for as huge ones (MADV_COLLAPSE, Linux 6.1; no setting of the system is
needed). Where the kernel has none to give, everything works with small ones. To give some, it
waits for a thread of its own on each processor. Where one is busy, that takes tenths of a
second, and half a minute was seen, in which a node serves nobody and nothing can end the wait:
who has met such a one asks for none for a while.

Python's own ``mmap`` can choose no address, and keeps an open file for each mapping.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
import weakref
from typing import Final

import numpy as np
from numpy.typing import NDArray

HUGE_NBYTES: Final = 2 << 20
SLOW_S: Final = 0.02
"""A longer wait for huge pages is the host's: 8 MiB take 2 ms where it has time."""

REST: Final = 50
"""For so many times its length nothing is asked for after it."""

_MADV_COLLAPSE: Final = 25
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_FAILED: Final = ctypes.c_void_p(-1).value

_asks_from_s = -math.inf

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_shared(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """Map the first ``nbytes`` bytes of an open file, to read and write, for all to see.

    Returns:
        ``u8[nbytes]``. The mapping lives as long as this array or a view of it; the file may
        be closed at once.

    Raises:
        OSError: the system allows no further mapping; nothing changed.
    """
    if nbytes < HUGE_NBYTES:
        return _owned(_map(None, nbytes, fd), nbytes)
    # Room for the mapping and its alignment is reserved, and what is too much given back.
    room = nbytes + HUGE_NBYTES
    begin = _map(None, room, -1)
    first = -(-begin // HUGE_NBYTES) * HUGE_NBYTES
    limit = first + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        _map(first, nbytes, fd)
    except OSError:
        _libc.munmap(begin, room)
        raise
    for low, high in ((begin, first), (limit, begin + room)):
        if low < high:
            _libc.munmap(low, high - low)
    return _owned(first, nbytes)


def ask_for_huge_pages(mapped: NDArray[np.uint8]) -> None:
    """Have the whole huge pages of a mapping's part allocated as such, if the kernel can."""
    global _asks_from_s  # noqa: PLW0603 - all threads wait for the same kernel
    begin = mapped.ctypes.data
    first = -(-begin // HUGE_NBYTES) * HUGE_NBYTES
    limit = (begin + mapped.nbytes) // HUGE_NBYTES * HUGE_NBYTES
    began_s = time.monotonic()
    if first < limit and began_s >= _asks_from_s:
        _libc.madvise(first, limit - first, _MADV_COLLAPSE)
        ended_s = time.monotonic()
        if ended_s - began_s > SLOW_S:
            _asks_from_s = ended_s + REST * (ended_s - began_s)


def _map(address: int | None, nbytes: int, fd: int) -> int:
    """Map a file, or reserve room; with an address right there.

    Args:
        address: where; None lets the system choose.
        nbytes: how much.
        fd: of the file, to read and write; -1 only reserves room.
    """
    if fd < 0:
        allowed, flags = 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    else:
        allowed, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    flags |= 0 if address is None else _MAP_FIXED
    begin: int = _libc.mmap(address, nbytes, allowed, flags, fd, 0)
    if begin == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return begin


def _owned(begin: int, nbytes: int) -> NDArray[np.uint8]:
    """View a mapping as an array with whose last view it goes."""
    buffer = (ctypes.c_char * nbytes).from_address(begin)
    # Not at exit: threads may still use it then, and it goes with the process.
    weakref.finalize(buffer, _libc.munmap, begin, nbytes).atexit = False
    return np.frombuffer(memoryview(buffer), np.uint8)
