"""The loop of preloaded.py's server: what it is asked for, and how it forks programs."""

import array
import contextlib
import functools
import io
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PART = 1 << 16
CREDENTIALS = struct.Struct("3i")
COUNTS = struct.Struct("4I")
"""Of a request: its bytes, files and words; 1 if the program begins a session."""
NAMESPACES = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
FILES_MAX = 253
"""The most descriptors that Linux sends in one message (SCM_MAX_FD)."""


@dataclass
class Request:
    """What a calling process told: its open files are those of ``numbers`` in the program."""

    python: str
    folder: str
    words: list[str]
    environment: dict[str, str]
    numbers: list[int]
    files: list[int]
    is_session: bool

    def close(self) -> None:
        """Close the files, in a process that is not the program."""
        for file in self.files:
            os.close(file)


def receive(connection: socket.socket) -> Request | None:
    """Return what a calling process tells; None if it is gone.

    It sends COUNTS, the numbers of its files, the path of its Python, its folder, words and
    environment variables: each of them with a zero byte at its end.
    """
    files = array.array("i")
    told, control, *_ = connection.recvmsg(PART, socket.CMSG_SPACE(files.itemsize * FILES_MAX))
    if not told:
        return None
    for _, _, numbers in control:
        files.frombytes(numbers)
    nbytes, file_count, word_count, session = COUNTS.unpack_from(told)
    while len(told) < nbytes:
        told += connection.recv(PART)
    parts = [os.fsdecode(part) for part in told[COUNTS.size : -1].split(b"\0")]
    numbers, (python, folder), words, variables = (
        parts[:file_count],
        parts[file_count : file_count + 2],
        parts[file_count + 2 : file_count + 2 + word_count],
        parts[file_count + 2 + word_count :],
    )
    environment = dict(each.split("=", 1) for each in variables)
    numbers = [*map(int, numbers)]
    return Request(python, folder, words, environment, numbers, [*files], bool(session))


def process_file(pid: int) -> io.FileIO:
    """Return a file that can be read when a child process has ended."""
    return open(os.pidfd_open(pid), "rb", buffering=0)


def other_namespaces(asker: int) -> list[int]:
    """Return the kinds of namespaces of the calling process that are not those of this one."""
    return [
        number
        for name, number in NAMESPACES.items()
        if os.readlink(f"/proc/self/ns/{name}") != os.readlink(f"/proc/{asker}/ns/{name}")
    ]


def enter(asker: int, kinds: list[int]) -> None:
    """Enter these namespaces of the calling process: network, processes and so on."""
    import ctypes

    target = os.pidfd_open(asker)
    if ctypes.CDLL(None, use_errno=True).setns(target, sum(kinds)):
        raise OSError(ctypes.get_errno(), "cannot enter the namespaces of the caller")
    os.close(target)


class Server:
    """What a server waits for: connections, and the ends of the programs that it has forked."""

    def __init__(self, listener: socket.socket):
        self._selector = selectors.PollSelector()
        self._call(listener, self._accept)
        self._call(sys.stdout, lambda _: os._exit(0))  # nobody reads it any more

    def is_asked(self) -> bool:
        """Wait; return True if the first event is a connection."""
        return self._selector.select()[0][0].fileobj is not sys.stdout

    def run(self) -> Request:
        """Serve; this function returns only in a program, what to become."""
        while self._selector.get_map():
            key, _ = self._selector.select()[0]
            request = key.data(key.fileobj)
            if request is not None:
                return request
        os._exit(0)

    def _call(self, file: Any, handler: Callable[[Any], Request | None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, handler)

    def _close(self) -> None:
        """Close, in a child process, all files that the server waits for."""
        for file in [key.fileobj for key in self._selector.get_map().values()]:
            self._selector.unregister(file)
            if file is not sys.stdout:
                file.close()

    def _accept(self, listener: socket.socket) -> None:
        self._call(listener.accept()[0], self._start)

    def _start(self, connection: socket.socket) -> Request | None:
        """Fork the program that a connection asks for."""
        self._selector.unregister(connection)
        request = receive(connection)
        if request is None:
            connection.close()
            return None
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        asker, _, _ = CREDENTIALS.unpack(peer)
        cores: set[int] = set()
        with contextlib.suppress(OSError):  # it has been killed
            others = other_namespaces(asker)
            cores = os.sched_getaffinity(asker)
        if not cores or (others and self._is_enclosed(asker, others)):
            connection.close()
            request.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._close()
            connection.close()
            os.sched_setaffinity(0, cores)
            return request
        request.close()
        ended = process_file(pid)
        self._call(ended, functools.partial(self._end, pid, connection))
        self._call(connection, functools.partial(self._pass_on, ended))
        return None

    def _is_enclosed(self, asker: int, kinds: list[int]) -> bool:
        """Fork a server for one program, in these namespaces of its caller; True outside it."""
        pid = os.fork()  # because only the next fork enters a namespace of processes
        if pid:
            self._call(process_file(pid), functools.partial(self._end, pid, None))
            return True
        self._close()
        enter(asker, kinds)
        return False

    def _pass_on(self, ended: io.FileIO, connection: socket.socket) -> None:
        """Send a program the signals that its caller got, or SIGKILL if the caller is gone."""
        signs = connection.recv(PART)
        if not signs:
            self._selector.unregister(connection)
        for sign in signs or [signal.SIGKILL]:
            signal.pidfd_send_signal(ended.fileno(), sign)

    def _end(self, pid: int, connection: socket.socket | None, ended: io.FileIO) -> None:
        """Forget a child process that has ended, and tell its caller the exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._selector.unregister(ended)
        ended.close()
        if connection is None:
            return
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        with connection, contextlib.suppress(OSError):
            connection.sendall(str(code).encode())
