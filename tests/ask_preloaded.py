"""The calling side of preloaded.py: asks its server to fork a program, and waits for its end.

    python ask_preloaded.py SOCKET PYTHON [ARGUMENT]...

It imports only modules that are written in C. `socket`, `signal` and `json` would take longer
than the start of Python.
"""

import _signal
import _socket
import array
import os
import sys

MAIN = "__main__.py"
FLAGS = {"-B", "-P", "-u"}
PASSED = (_signal.SIGINT, _signal.SIGTERM)
PART = 16
"""The most bytes of an exit code."""


def inherited() -> list[int]:
    """Return the open descriptors of this process."""
    numbers = map(int, os.listdir("/proc/self/fd"))  # and that of the listing, closed now
    return sorted(each for each in numbers if os.path.exists(f"/proc/self/fd/{each}"))


def is_program(words: list[str]) -> bool:
    """Return True if these arguments of Python name a program that can be forked."""
    first = "".join(words[:1])
    if first in FLAGS:
        return is_program(words[1:])
    is_named = first in {"-c", "-m"} or first.endswith(".py")
    return is_named or os.path.isfile(os.path.join(first, MAIN))


def ask(path: str, words: list[str]) -> int:
    """Ask the server to fork a program, and wait for its end."""
    files = array.array("i", inherited())
    told = {
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "files": list(files),
        "python": f"{os.path.dirname(path)}/python",
    }
    _signal.pthread_sigmask(_signal.SIG_BLOCK, PASSED)
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(path)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
    line = ascii(told).encode() + b"\n"
    sent = connection.sendmsg([line], rights)
    if line[sent:]:  # a fast program has ended: then to send nothing fails, too
        connection.sendall(line[sent:])

    def pass_on(sign: int, _: object) -> None:
        try:  # noqa: SIM105 -- to import contextlib takes long
            connection.sendall(bytes([sign]))
        except OSError:
            pass  # the program has ended

    for sign in PASSED:
        _signal.signal(sign, pass_on)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, PASSED)
    for file in files:
        os.close(file)
    ended = int(connection.recv(PART) or b"1")
    if ended < 0:
        if -ended != _signal.SIGKILL:  # it has no handler
            _signal.signal(-ended, _signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    return ended


if __name__ == "__main__":
    path, python, *words = sys.argv[1:]
    if not is_program(words):
        os.execv(python, [python, *words])
    os._exit(ask(path, words))
