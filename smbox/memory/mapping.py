"""Mappings of files in /dev/shm, with huge pages.

Pages of 4 KiB cost a large region a sixth of its speed: in address translation, and because the
hardware prefetcher stops at the end of each page. A mapping of 2 MiB or more therefore begins
at a multiple of 2 MiB, and huge pages are requested for it (MADV_COLLAPSE, Linux 6.1, which
needs no system setting). Without huge pages everything works with small ones.

During the request the kernel waits for one of its threads on each processor. On a busy
processor this takes tenths of a second, and up to half a minute was measured. The wait cannot
be interrupted, and a node serves nobody meanwhile. After a slow request, none is made for a
while.

Python's ``mmap`` cannot choose an address, and keeps a file open for each mapping.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
import weakref
from ctypes import c_int, c_long, c_size_t, c_void_p
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.memory.layout import align

HUGE_NBYTES: Final = 2 << 20
SLOW_S: Final = 0.1
"""A request for huge pages that takes longer is slow. 8 MiB take 0.4 ms; 18 ms in a virtual
machine whose host must find the memory first, which small pages need as well; and 30 to 65 ms
if twice as many processes compute as there are processors."""

REST: Final = 50
"""After a slow request, no other one is made for this many times its duration."""

_MADV_COLLAPSE: Final = 25
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_FAILED: Final = c_void_p(-1).value

_next_request_s = -math.inf

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
_libc.munmap.argtypes = (c_void_p, c_size_t)
_libc.madvise.argtypes = (c_void_p, c_size_t, c_int)


def map_shared(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """Map the first ``nbytes`` bytes of an open file for reading and writing, shared.

    Returns:
        ``u8[nbytes]``. The mapping exists as long as this array or a view of it. The caller may
        close the file at once.

    Raises:
        OSError: the system refuses the mapping; nothing changed.
    """
    if nbytes < HUGE_NBYTES:
        return _owned(_map(None, nbytes, fd), nbytes)
    # Reserve addresses for the mapping and its alignment, and release those that are not used.
    room = nbytes + HUGE_NBYTES
    begin = _map(None, room, -1)
    first = align(begin, HUGE_NBYTES)
    limit = first + align(nbytes, mmap.PAGESIZE)
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
    """Request huge pages for a part of a mapping, as far as it holds entire ones."""
    global _next_request_s  # noqa: PLW0603 - one kernel serves all threads
    begin = mapped.ctypes.data
    first = align(begin, HUGE_NBYTES)
    limit = (begin + mapped.nbytes) // HUGE_NBYTES * HUGE_NBYTES
    began_s = time.monotonic()
    if first < limit and began_s >= _next_request_s:
        _libc.madvise(first, limit - first, _MADV_COLLAPSE)
        ended_s = time.monotonic()
        if ended_s - began_s > SLOW_S:
            _next_request_s = ended_s + REST * (ended_s - began_s)


def _map(address: int | None, nbytes: int, fd: int) -> int:
    """Map a file or reserve addresses; return the address.

    Args:
        address: where to map; None: the system chooses.
        nbytes: number of bytes.
        fd: descriptor of the file; -1: only reserve addresses.
    """
    if fd < 0:
        protection, flags = 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    else:
        protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    flags |= 0 if address is None else _MAP_FIXED
    begin: int = _libc.mmap(address, nbytes, protection, flags, fd, 0)
    if begin == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return begin


def _owned(begin: int, nbytes: int) -> NDArray[np.uint8]:
    """Return a mapping as an array; it is unmapped with the last view of the array."""
    buffer = (ctypes.c_char * nbytes).from_address(begin)
    # Not at exit: threads may still use the mapping, which ends with the process.
    weakref.finalize(buffer, _libc.munmap, begin, nbytes).atexit = False
    return np.frombuffer(memoryview(buffer), np.uint8)
