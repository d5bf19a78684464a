"""Who a process is, beyond its pid: pids are used again, start times are not."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def started(pid: int) -> int:
    """Return the start time of a process in ticks since boot, or 0 if there is none.

    Field 22 of /proc/PID/stat (proc(5)); the command name before it may hold anything.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat[stat.rindex(b")") + 2 :].split()
    return 0 if fields[0] in {b"Z", b"X"} else int(fields[19])


def is_alive(pid: int, pid_started: int) -> bool:
    """Tell whether this very process still runs; a zombie does not."""
    return pid_started != 0 and started(pid) == pid_started


@functools.cache
def _own_start(pid: int) -> int:
    return started(pid)


def own() -> tuple[int, int]:
    """Return this process's pid and start time."""
    pid = os.getpid()
    return pid, _own_start(pid)
