"""Progress reports of a worker to its launcher: lines of JSON in an inherited pipe.

Without a launcher's pipe (``torchrun``, a plain run) reports are dropped at no cost. A report
never blocks training: if the pipe is full it is dropped, because the next report replaces it.
"""

from __future__ import annotations

import json
import os
import select
import stat
from collections.abc import Mapping
from typing import Any, Final, Self

REPORT_FD: Final = "SMBOX_REPORT_FD"
"""Environment variable with the number of the inherited descriptor."""


class Reporter:
    """Sends a worker's progress to the launcher.

    Args:
        fd: write end of the launcher's pipe, or None.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_blocking(fd, False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Use the descriptor that ``smbox run`` has set in ``env``, if it is a pipe.

        A program between the two, such as torchrun, passes the variable on, but may have closed
        the descriptor or reused its number for another file.
        """
        text = env.get(REPORT_FD, "")
        return cls(int(text) if text.isdecimal() and _is_pipe(int(text)) else None)

    def report(self, **fields: Any) -> bool:
        """Send named values, for example ``step=10, loss=0.3``.

        Returns:
            Whether they were sent; a line that a pipe cannot accept in one piece never is.
        """
        line = json.dumps(fields, default=str).encode() + b"\n"
        if self._fd is None or len(line) > select.PIPE_BUF:
            return False
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            return False
        except OSError:  # the launcher has ended, or the environment is a copy
            self._fd = None
            return False
        return True


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except (OSError, OverflowError):
        return False


def parse(line: str) -> dict[str, Any]:
    """Return the fields of a report; none if the line is not a report."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
