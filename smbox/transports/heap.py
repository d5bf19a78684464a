"""The heap of a client's process: memory of one reply serves the next.

glibc gives a large block back to the system when it is freed, unless blocks of its size were
freed before: the sizes from which it does so, and at which it trims, grow with what it sees
(mallopt(3), "the dynamic mmap threshold"). A program that works with arrays gets there by
itself; in another, each MiB that ZeroMQ receives costs some 80 page faults, which made a get
over tcp a quarter slower (530 against 420 us a MiB).
"""

from __future__ import annotations

import contextlib
from typing import Final

import numpy as np

BLOCK_NBYTES: Final = (32 << 20) - (64 << 10)
"""Just below the largest block from which glibc learns."""


def learn_large_blocks() -> None:
    """Let the C library see that large blocks come and go: some microseconds, no page touched.

    It is its own rule that is used, nothing is set: with another C library nothing happens.
    """
    with contextlib.suppress(MemoryError):  # it would have been a little faster
        np.empty(BLOCK_NBYTES, np.uint8)
