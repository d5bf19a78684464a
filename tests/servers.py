"""Servers that fork programs with modules imported (preloaded.py), and how they are asked.

A program of ``preloading`` is a child of its server, so no test can stop it, or be certain that
it has ended. A program of ``Children`` is a child of this process, as any other: this process
adopts it from the server.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smbox.native import compiling

FOLDER = Path(__file__).parent
SERVER = str(FOLDER / "preloaded.py")
COMMANDS = ("smbox.cli.main", "memnode.cli")
COMMANDS += ("smbox_torch.launching.run", "smbox_torch.launching.agent")
COMMANDS += ("pydantic.type_adapter", "pydantic.fields", "pydantic.types")  # of typer
COMMANDS += ("pytest", "smbox.testing.model_box")  # of tests' scripts
FRAMEWORKS = ("torchvision", "transformers.trainer", "lightning.pytorch", "sklearn.datasets")
MODULES = {"preloaded": COMMANDS, "frameworks": (*COMMANDS, *FRAMEWORKS)}
"""What the Python of each of these fixtures has imported beside torch."""
OF_CHILDREN = ("memnode.cli", "memnode.group", "memnode.server", "smbox.embedded")
OF_CHILDREN += ("smbox.many.box", "smbox.testing.chaos.worker")
PIDS: set[int] = set()
"""Pids of the servers; the leak check ignores them."""
PR_SET_CHILD_SUBREAPER = 36
PART = 16
"""The most bytes of a pid."""
COUNTS = runpy.run_path(str(FOLDER / "fork_server.py"))["COUNTS"]


def is_program(words: list[str]) -> bool:
    """Return True if these arguments of Python name a program that can be forked."""
    first = "".join(words[:1])
    if first in {"-B", "-P", "-u"}:
        return is_program(words[1:])
    return first in {"-c", "-m"} or first.endswith(".py")


@contextmanager
def preloading(name: str, python: str = sys.executable) -> Iterator[str]:
    """Start a server that forks programs with modules imported; yield its Python's path.

    The server is a program of ``python``, which may have imported some of the modules.
    """
    modules = [each for each in MODULES[name] if find_spec(each.partition(".")[0])]
    with tempfile.TemporaryDirectory() as folder:
        made, path = f"{folder}/python", f"{folder}/socket"
        compile_c(FOLDER / "ask_preloaded.c", made, SOCKET=path, PYTHON=sys.executable)
        serve = [python, SERVER, path, *modules]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}  # it is read at the import
        with subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE) as server:
            PIDS.add(server.pid)
            assert server.stdout is not None
            try:
                assert server.stdout.readline() == b"ready\n"
                yield made
            finally:
                server.kill()
        PIDS.remove(server.pid)


def compile_c(source: Path, program: str, **macros: str) -> None:
    """Compile a program in which macros are these strings."""
    compiler = compiling.system_compiler() or compiling.zig_compiler()
    words = [*compiler, "-std=c11", "-O1", "-Wall", "-Wextra", str(source), "-o", program]
    for name, text in macros.items():
        words.append(f"-D{name}={json.dumps(text, ensure_ascii=False)}")
    subprocess.run(words, check=True)


class Children:
    """A server without torch, and ``popen``, the class of the programs that it starts.

    Other programs, and those with unusual options, start as usual.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._python = sys.executable  # tests replace it
        self._control = ctypes.CDLL(None).prctl
        with theirs:
            serve = [sys.executable, SERVER, str(theirs.fileno()), *OF_CHILDREN]
            pipes = dict.fromkeys(
                ("stdin", "stdout", "stderr"), subprocess.PIPE
            )  # as in programs
            self._server = subprocess.Popen(serve, pass_fds=[theirs.fileno()], **pipes)
        PIDS.add(self._server.pid)
        start = self._start

        class Popen(subprocess.Popen):
            def _execute_child(self, *told: Any) -> None:
                if not start(self, *told):
                    super()._execute_child(*told)

        self.popen = Popen

    def close(self) -> None:
        """End the server; programs go on."""
        self._socket.close()
        self._server.communicate()
        PIDS.remove(self._server.pid)

    def _start(
        self,
        made: Any,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        *rest: Any,
    ) -> bool:
        """Start a program and set its pid; False if it is none, or has unusual options."""
        shell, pipes, owner = rest[2], rest[3:9], rest[10:14]
        is_session, *group = rest[14:]
        unusual = (executable, preexec_fn, pass_fds, shell, owner != (None, None, None, -1))
        if any(unusual) or not close_fds or group not in ([-1], []) or isinstance(args, str):
            return False
        words = list(map(os.fspath, args))
        if words[0] != self._python or not is_program(words[1:]):
            return False
        variables = (os.environ if env is None else env).items()
        told = ["0", "1", "2", self._python, os.fspath(cwd or os.getcwd()), *words[1:]]
        told += [f"{os.fsdecode(name)}={os.fsdecode(text)}" for name, text in variables]
        text = b"".join(os.fsencode(each) + b"\0" for each in told)
        counts = COUNTS.pack(COUNTS.size + len(text), 3, len(words) - 1, is_session)
        given = enumerate((pipes[0], pipes[3], pipes[5]))
        files = array.array("i", [own if file == -1 else file for own, file in given])
        made.pid = self._ask(counts + text, files)
        made._child_created = True
        made._close_pipe_fds(*pipes)
        return True

    def _ask(self, request: bytes, files: array.array) -> int:
        with self._lock:
            self._control(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
                self._socket.sendall(request[self._socket.sendmsg([request], rights) :])
                told = b""
                while not told.endswith(b"\n"):
                    part = self._socket.recv(PART)
                    assert part, self._server.communicate()[1]
                    told += part
                return int(told)
            finally:
                self._control(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
