"""KeyboardInterrupt before any line of a job, as Python's handler of Ctrl-C could raise it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupted(at: int, job: Callable[[], object], files: tuple[str, ...]) -> bool:
    """Run a job, and raise KeyboardInterrupt before its ``at``-th line in some files.

    Lines that acquire or release a lock (``with``) are not counted: tracing could interrupt
    between the end of the block and the release, where CPython handles no signals.

    Args:
        at: number of the line, from 1.
        job: called in this thread.
        files: names of the files whose lines count, or beginnings of such names.

    Returns:
        False if the job ended before that line.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        file = frame.f_code.co_filename
        if not file.startswith(files):
            return None
        if event == "line":
            line = linecache.getline(file, frame.f_lineno)
            lines += not line.lstrip().startswith("with ")
            if lines == at:
                raise KeyboardInterrupt  # ends the tracing, too
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        # In a generator, which has its own current exception: if a handler is interrupted as it
        # begins or ends, the handled exception stays current (CPython 3.11).
        next(job() for _ in (None,))
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
