"""Errors of system calls and threads that name the limit of the system to raise."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from smbox.errors import SegmentError, SystemLimitError

_CURES: Final = {
    None: "; raise ulimit -n or fs.file-max",  # posix_ipc: too many open files, by its text
    errno.EMFILE: "; too many open files: raise ulimit -n",
    errno.EAGAIN: "; too many threads or too little memory: raise ulimit -u, -v, or pids.max",
    errno.ENFILE: "; too many open files on this host: raise fs.file-max",
    errno.EFBIG: "; files may not be so large: raise ulimit -f",
    errno.ENOSPC: "; no free inode: free regions, or mount it with more nr_inodes",
    errno.ENOMEM: "; too many mappings or too little memory: raise vm.max_map_count, ulimit -v",
}


def is_limit(error: OSError) -> bool:
    """Return whether a system call failed because a limit is reached."""
    return error.errno in _CURES


def refusal(what: str, error: OSError | ValueError) -> SegmentError | SystemLimitError:
    """Return the error of a system call; a SystemLimitError if a limit is reached."""
    cure = _CURES.get(getattr(error, "errno", 0))
    kind = SystemLimitError if cure else SegmentError
    return kind(f"cannot {what}: {error}{cure or ''}")


def start_thread(start: Callable[[], object]) -> None:
    """Call a function that starts a thread, such as ``Thread.start``.

    Raises:
        SystemLimitError: this process can have no more threads.
    """
    try:
        start()
    except RuntimeError as error:
        raise SystemLimitError(f"{error}{_CURES[errno.EAGAIN]}") from error
