"""Crash points: a child process that is killed before the n-th line of what it does.

    line = 1
    while killed_at(line, change, FILES):
        ...  # look at what the kill left, and recover
        line += 1

Every line of Python in the files is such a point; compiled code has none.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Container
from types import FrameType
from typing import Any


def killed_at(line: int, run: Callable[[], object], files: Container[str | None]) -> bool:
    """Run in a forked child that kills itself with SIGKILL before its ``line``-th line.

    Args:
        line: counted from 1, over all lines run in ``files``, repeated ones too.
        run: called in the child; what it does to shared memory is all that is left of it.
        files: the ``__file__`` of the modules whose lines count.

    Returns:
        False: the child came to its end, with fewer lines.

    Raises:
        AssertionError: ``run`` raised; its traceback is on standard error.
    """
    child = os.fork()
    if child == 0:
        _run_and_exit(line, run, files)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, -signal.SIGKILL}, f"the child ended with {code}"
    return code != 0


def _run_and_exit(line: int, run: Callable[[], object], files: Container[str | None]) -> None:
    seen = 0

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        seen += event == "line"
        if seen == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    status = 1
    try:
        sys.settrace(trace)
        run()
        status = 0
    except BaseException:  # noqa: BLE001 -- a child of a test must never return into it
        traceback.print_exc()
    finally:
        os._exit(status)
