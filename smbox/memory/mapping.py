"""Mapping a file of /dev/shm where the processor reads it fastest.

Pages of 4 KiB cost a large region a sixth of its speed: address translations, and a prefetcher
that stops at every page's end. So a mapping of 2 MiB and more begins at a multiple of that, and
its pages are asked for as huge ones (MADV_COLLAPSE, Linux 6.1; no setting of the system is
needed). Where the kernel has none to give, everything works with small ones.

Python's own ``mmap`` can choose no address, and keeps an open file for each mapping.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Final

import numpy as np
from numpy.typing import NDArray

HUGE_NBYTES: Final = 2 << 20
_MADV_COLLAPSE: Final = 25
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_KEEP_SIZE: Final = 0x01  # of fallocate(2), as the next
_PUNCH_HOLE: Final = 0x02
_FAILED: Final = ctypes.c_void_p(-1).value

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
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
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
    begin = mapped.ctypes.data
    first = -(-begin // HUGE_NBYTES) * HUGE_NBYTES
    limit = (begin + mapped.nbytes) // HUGE_NBYTES * HUGE_NBYTES
    if first < limit:
        _libc.madvise(first, limit - first, _MADV_COLLAPSE)


def replace_by_zeros(mapped: NDArray[np.uint8]) -> None:
    """Put pages of this process's own in place of a mapping's part, from a page's begin on.

    They hold zeros and take no memory until they are written. Others see the file as before,
    and whoever reads here meanwhile, in whatever thread, finds a page at any time.

    Raises:
        OSError: the part does not begin at a page, or the system allows no further mapping.
    """
    _map(mapped.ctypes.data, mapped.nbytes, -1, mmap.PROT_READ | mmap.PROT_WRITE)


def give_back_pages(fd: int, at_byte: int, nbytes: int) -> None:
    """Give the pages of a file's part back to the system: its mappings read zeros from then on.

    A page that lies in the part only partly stays, but for the file's last one.

    Raises:
        OSError: the file is not open for writing; nothing changed.
    """
    nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, at_byte, nbytes):
        raise _error()


def _map(address: int | None, nbytes: int, fd: int, private: int = 0) -> int:
    """Map a file, or without one private pages; with an address right there.

    Args:
        address: where; None lets the system choose.
        nbytes: how much.
        fd: of the file, to read and write; -1 for none.
        private: what private pages allow; nothing, if they only reserve room.
    """
    if fd < 0:
        allowed, flags = private, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    else:
        allowed, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    flags |= 0 if address is None else _MAP_FIXED
    begin: int = _libc.mmap(address, nbytes, allowed, flags, fd, 0)
    if begin == _FAILED:
        raise _error()
    return begin


def _owned(begin: int, nbytes: int) -> NDArray[np.uint8]:
    """View a mapping as an array with whose last view it goes."""
    buffer = (ctypes.c_char * nbytes).from_address(begin)
    # Not at exit: threads may still use it then, and it goes with the process.
    weakref.finalize(buffer, _libc.munmap, begin, nbytes).atexit = False
    return np.frombuffer(memoryview(buffer), np.uint8)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
