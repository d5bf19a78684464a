"""Progress reports of a worker to its launcher: lines of JSON in an inherited pipe.

Without a launcher (``torchrun``, a plain run) reports go nowhere and cost nothing. A report
never blocks training: one that finds the pipe full is dropped, the next one is newer anyway.
"""

from __future__ import annotations

import json
import os
import select
import stat
from collections.abc import Mapping
from typing import Any, Final, Self

REPORT_FD: Final = "SMBOX_REPORT_FD"
"""Variable that holds the number of the inherited descriptor."""


class Reporter:
    """Sends a worker's progress to whoever shows it.

    Args:
        fd: write end of the launcher's pipe, or None.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_blocking(fd, False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Take the descriptor that ``smbox run`` has left in ``env``.

        A program between the two, torchrun for one, passes the variable on and may have closed
        the descriptor, or use its number for a file of its own.
        """
        text = env.get(REPORT_FD, "")
        return cls(int(text) if text.isdecimal() and _is_pipe(int(text)) else None)

    def report(self, **fields: Any) -> bool:
        """Send named values, for example ``step=10, loss=0.3``.

        Returns:
            Whether they were sent; a line longer than a pipe takes at once never is.
        """
        line = json.dumps(fields, default=str).encode() + b"\n"
        if self._fd is None or len(line) > select.PIPE_BUF:
            return False
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            return False
        except OSError:  # the launcher is gone, or this is a copy of its environment
            self._fd = None
            return False
        return True


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except (OSError, OverflowError):
        return False


def parse(line: str) -> dict[str, Any]:
    """Read a report; a line that is none gives no fields."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
