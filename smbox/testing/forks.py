"""Children that a test forks and kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def in_child(then: Callable[[], object]) -> int:
    """Fork a child that calls ``then()`` and waits to be killed; return its pid.

    Raises:
        AssertionError: the call has failed; the child has ended.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            then()
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    is_well = os.read(reader, 1) == b"x"
    os.close(reader)
    if not is_well:
        os.waitpid(child, 0)
    assert is_well, "the child failed"
    return child


def end(child: int) -> None:
    """Kill a child and wait for its end."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
