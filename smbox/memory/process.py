"""Identity of processes: pid and start time, because the system reuses pids."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from smbox.limits import refusal

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def start_time(pid: int) -> int:
    """Return the start time of a process in ticks since boot, or 0 if there is none.

    Reads field 22 of the main thread's stat (proc(5)); the command name before it may hold any
    bytes. qemu-user returns another time in /proc/PID/stat, but only to the process itself.

    Raises:
        SegmentError: the file cannot be read, as with too many open files.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError as error:
        raise refusal(f"read the start time of process {pid}", error) from error
    fields = stat[stat.rindex(b")") + 2 :].split()
    return 0 if fields[0] in {b"Z", b"X"} else int(fields[19])


def is_alive(pid: int, pid_started: int) -> bool:
    """Return whether the process with this pid and start time runs; a zombie does not."""
    return pid_started != 0 and start_time(pid) == pid_started


def signal_on_parent_death(signal_number: int) -> None:
    """Make the kernel send this process a signal when its parent dies (prctl(2)).

    The kernel sends it when the thread that created this process ends.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number)


def identity() -> tuple[int, int]:
    """Return this process's pid and start time."""
    pid = os.getpid()
    return pid, start_time(pid)
