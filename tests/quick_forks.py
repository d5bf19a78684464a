"""Prepares the server of preloaded.py, so that a fork and its end copy and free little."""

import ctypes
import gc
import weakref

MADV_COLLAPSE = 25


def prepare() -> None:
    """Keep garbage collections and exits of forks from what is imported so far."""
    gc.collect()
    gc.freeze()  # a collection would change all objects
    for finalizer in weakref.finalize._registry:  # of torch's libraries: they change 8000 pages
        finalizer.atexit = False
    use_huge_pages()


def use_huge_pages() -> None:
    """Collapse the memory into huge pages: a fork then copies 1 of 512 page table entries.

    Where Linux refuses it (before 6.1), forks only take longer.
    """
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as file:
        mappings = [line.split() for line in file]
    for addresses, access, _, _, _, *path in mappings:
        if access == "rw-p" and path in ([], ["[heap]"]):
            first, limit = (int(address, 16) for address in addresses.split("-"))
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(limit - first), MADV_COLLAPSE)
