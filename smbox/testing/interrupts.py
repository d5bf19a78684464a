"""KeyboardInterrupt in a job, as Python's handler of Ctrl-C could raise it."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

HOLD_S: Final = 10.0
"""Time for which a thread that computes keeps the GIL."""


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

    # In a generator, which has its own current exception: if a handler is interrupted as it
    # begins or ends, the handled exception stays current (CPython 3.11).
    return _ends_by_interrupt(lambda: next(job() for _ in (None,)), trace)


def interrupted_at_return(at: int, job: Callable[[], object]) -> bool:
    """Run a job, and raise KeyboardInterrupt where its ``at``-th call of Python code returns.

    CPython handles signals there, also where ``Condition.__enter__`` has acquired its lock.

    Args:
        at: number of the return, from 1; that of the job is the last one.
        job: called in this thread.

    Returns:
        False if the job ended before that return.
    """
    returns = 0

    def trace(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal returns
        returns += event == "return"
        if returns == at:
            raise KeyboardInterrupt  # ends the tracing, too
        return trace

    return _ends_by_interrupt(job, trace)


def _ends_by_interrupt(job: Callable[[], object], trace: Callable[..., Any]) -> bool:
    """Run a job under a trace function; return whether KeyboardInterrupt ended it."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def interrupted_as_it_acquires(
    mutex: threading.Lock | threading.RLock, job: Callable[[], object]
) -> bool:
    """Run a job that waits for a mutex first; SIGINT comes between its end and its return.

    The job then has the mutex, and waits for the GIL to return from ``acquire``.

    Args:
        mutex: held by another thread until the job waits for it.
        job: called in this thread, which must be the main one.

    Returns:
        Whether KeyboardInterrupt ended the job.
    """
    main, is_taken = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        with mutex:
            is_taken.set()
            while sys._current_frames()[main].f_code.co_filename == threading.__file__:  # noqa: SLF001
                time.sleep(0.001)  # from here on the other thread is in ``acquire``
        while mutex.acquire(blocking=False):  # until the other thread has it
            mutex.release()
        os.kill(os.getpid(), signal.SIGINT)

    before = sys.getswitchinterval()
    sys.setswitchinterval(HOLD_S)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        is_taken.wait()
        job()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setswitchinterval(before)
        thread.join()
    return False
