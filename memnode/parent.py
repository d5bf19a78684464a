"""Watches the process a node was started for, by pid and start time: pids are used again.

PR_SET_PDEATHSIG is not enough: it follows the thread that forked, and a node may have been
started for a process that is not its parent.
"""

from __future__ import annotations

from smbox.memory import process


class ParentWatch:
    """Tells whether the process that was there at construction still lives.

    Args:
        pid: the process; one that is gone already counts as ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._started = process.started(pid)

    def has_ended(self) -> bool:
        """Tell whether the process ended, even if another one has its pid by now."""
        return not process.is_alive(self.pid, self._started)
