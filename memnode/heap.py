"""The heap of a node's process: memory of one message serves the next.

glibc gives the memory of a large message back to the system when it is freed, and the next one
costs 256 page faults for each MiB: a third of what a node does for a GET.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

KEPT_NBYTES: Final = 32 << 20
"""Free memory that an arena keeps, and the size from which memory is the system's own: the
most that glibc takes for the latter. Two windows of requests."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Ask for that, for the whole process; False where the C library knows no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        wanted = (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD)
        return all(mallopt(option, KEPT_NBYTES) for option in wanted)
    return False
