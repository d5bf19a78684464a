"""The file of an ipc address: ZeroMQ binds over whatever is there and leaves its own behind."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from smbox.errors import ConnectError


def check_free(path: str, address: str) -> None:
    """See that a unix socket may be made at ``path``; one that nobody listens on may go.

    An abstract name (``@...``) is no file; binding tells whether it is taken.

    Raises:
        ConnectError: somebody listens there, or it is no socket; nothing was changed.
    """
    if path.startswith("@"):
        return
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:  # nothing there, or no way to it: which binding will tell
        return
    if not is_socket:
        raise ConnectError("cannot listen: a file of another kind is there", address=address)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:  # its queue is full, or it is another user's: somebody is there
            pass
    raise ConnectError("cannot listen: somebody else does already", address=address)


class SocketFile:
    """The file that a bound socket has made, known by its inode.

    Args:
        path: of the ipc address.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = _identity(path)

    def remove(self) -> None:
        """Remove it if it is still the same."""
        if self._identity is not None and _identity(self._path) == self._identity:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


def _identity(path: str) -> tuple[int, int] | None:
    if path.startswith("@"):
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
