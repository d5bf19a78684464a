"""A Python that begins with PyTorch imported: a fork of one process that has imported it.

    python preloaded.py SOCKET serve [MODULE]...  # says "ready", then forks until it is killed
    python preloaded.py SOCKET PYTHON -c CODE [ARGUMENT]...
    python preloaded.py SOCKET PYTHON FILE.py [ARGUMENT]...

The others are ``python -c CODE`` and ``python FILE.py`` without the 3 s of processor time that
the imports of torch and of its optimizers take, and without those of each MODULE: variables,
folder and standard files are those of the program, and so is its exit code. Who kills it kills
the program. What begins with other words is run by PYTHON itself.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys

PART = 1 << 16


def serve(path: str, modules: list[str]) -> list[str]:
    """Fork a program for each connection; in the program, return its words."""
    import torch

    import smbox_torch

    for name in smbox_torch.__all__:
        getattr(smbox_torch, name)
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)  # it imports torch._dynamo
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the end of each program looks at all objects, and so copies their pages
    signal.signal(signal.SIGCHLD, reap)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return keep(connection)
            connection.close()


def reap(*_: object) -> None:
    """Take note of ends, so that their processor time counts."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def keep(connection: socket.socket) -> list[str]:
    """Fork the program, and say how it ends; the program returns from here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    files = array.array("i", [0, 0, 0])
    told, control, *_ = connection.recvmsg(PART, socket.CMSG_SPACE(files.itemsize * 3))
    files.frombytes(control[0][2])
    files = files[3:]
    while not told.endswith(b"\n"):
        told += connection.recv(PART)
    pid = os.fork()
    if pid == 0:
        connection.close()
        return become(json.loads(told), files)
    for file in (*files, 0, 1, 2):
        os.close(file)
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:  # whoever waited for it is gone
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(str(code).encode())
    os._exit(0)


def become(told: dict, files: array.array) -> list[str]:
    """Take variables, folder and standard files of the one that asked."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    if threads := os.environ.get("OMP_NUM_THREADS"):  # torch has read that of the server
        sys.modules["torch"].set_num_threads(int(threads))
    return told["words"]


def ask(path: str, words: list[str]) -> int:
    """Have a program forked, and wait for its end."""
    environment = {name: os.environ[name] for name in os.environ if name != "SMBOX_REPORT_FD"}
    told = {"words": words, "environment": environment, "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        files = array.array("i", [0, 1, 2])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
        line = json.dumps(told).encode() + b"\n"
        sent = connection.sendmsg([line], rights)
        connection.sendall(line[sent:])
        for file in (0, 1, 2):
            os.close(file)
        ended = int(connection.recv(PART) or b"1")
    if ended < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other effect
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    return ended


def prepare(words: list[str]) -> tuple[str, str]:
    """Set the arguments as Python does; return the source and the name of its file."""
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        return words[1], "<string>"
    sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
    with open(words[0], encoding="utf-8") as file:
        return file.read(), os.path.abspath(words[0])


def main() -> tuple[str, str]:
    """Serve or ask; in a program, return its source and the name of its file."""
    path, *words = sys.argv[1:]
    if words[0] == "serve":
        return prepare(serve(path, words[1:]))
    python, *words = words
    if words[:1] != ["-c"] and not "".join(words[:1]).endswith(".py"):
        os.execv(python, [python, *words])
    os._exit(ask(path, words))


if __name__ == "__main__":
    program = main()
    for name in [name for name in globals() if not name.startswith("__") and name != "program"]:
        del globals()[name]
    del globals()["name"]
    __file__ = program[1]
    exec(compile(*globals().pop("program"), "exec"), globals())
