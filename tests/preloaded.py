"""A Python that starts with PyTorch imported: a fork of a server process that has imported it.

    python preloaded.py SOCKET [MODULE]...  # prints "ready" when it listens
    python preloaded.py NUMBER [MODULE]...  # at a socket with this number

Both are servers, which servers.py starts. The programs of the second one are children of its
parent. Those of the first one belong to processes of ask_preloaded.c, which is called as Python
is: with [-B] [-P] [-u] and -c CODE, -m NAME, FILE.py or FOLDER (its __main__.py). A program is
run as Python runs it, but saves the 3 s of processor time for the imports of torch, its
optimizers and each MODULE. It has the environment variables, current folder, cores, namespaces
and open files of the calling process, which returns the program's exit code. SIGINT and SIGTERM
are forwarded to the program. Killing the calling process kills the program. ``sys.executable``
of the program is this Python, so processes that it starts (also by ``multiprocessing`` "spawn")
are forks too.

A program ends after its exit functions (atexit), without destroying its modules. That would
take four times as long as the rest, because a fork copies each page that it changes. Finalizers
of what the server has imported do not run either.
"""

import importlib
import multiprocessing.spawn
import os
import socket
import sys
import time

import quick_forks
from fork_server import Request, Server, receive

NO_FILE = "<string>"
MAIN = "__main__.py"
FLAGS = {"-B", "-P", "-u"}
RUN_MODULE = """
import runpy, sys
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def serve(path: str, modules: list[str]) -> list[str]:
    """Fork a program for each connection; return its arguments in the program.

    The server imports its modules at the first connection, because some test runs need none. It
    ends when the reader of its standard output closes the pipe.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    server = Server(listener)
    if server.is_asked():
        preload(modules)
    return become(server.run())


def serve_parent(number: str, modules: list[str]) -> list[str]:
    """Fork a program for each request of the parent, whose child it becomes.

    The process between them ends at once, while the parent adopts orphans. Return the
    program's arguments in the program.
    """
    for name in modules:
        importlib.import_module(name)
    quick_forks.prepare()
    with socket.socket(fileno=int(number)) as parent:
        while request := receive(parent):
            middle = os.fork()
            if middle == 0:
                middle = os.getpid()
                pid = os.fork()
                if pid:
                    parent.sendall(str(pid).encode())
                    os._exit(0)
                parent.close()
                while os.getppid() == middle:
                    time.sleep(0.0005)
                return become(request)
            os.waitpid(middle, 0)
            request.close()
            parent.sendall(b"\n")
    os._exit(0)


def preload(modules: list[str]) -> None:
    """Import torch, all of smbox_torch, and ``modules``."""
    import torch

    import smbox_torch

    for name in smbox_torch.__all__:
        getattr(smbox_torch, name)
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)  # it imports torch._dynamo
    for name in modules:
        importlib.import_module(name)
    quick_forks.prepare()


def become(request: Request) -> list[str]:
    """Adopt the environment, folder and files of the calling process; return the arguments."""
    free = 1 + max([*request.numbers, *request.files], default=0)
    for number, file in enumerate(request.files, free):  # first to numbers that are no target
        os.dup2(file, number)
        os.close(file)
    for file, number in enumerate(request.numbers, free):
        os.dup2(file, number)
        os.close(file)
    before = modules_of(os.environ)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[1 : 1 + len(before)] = modules_of(os.environ)
    os.chdir(request.folder)
    if request.is_session:
        os.setsid()
    sys.executable = request.python
    multiprocessing.spawn.set_executable(sys.executable)
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads and "torch" in sys.modules:  # it has read the value of the server
        sys.modules["torch"].set_num_threads(int(threads))
    return request.words


def modules_of(environment: dict[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH; they follow the program's own folder in sys.path."""
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def prepare(words: list[str]) -> tuple[str, str]:
    """Set sys.argv and sys.path as Python does; return the source and its file name."""
    if words[0] in FLAGS:
        program = prepare(words[1:])
        if words[0] == "-u":
            for file in (sys.stdout, sys.stderr):
                file.reconfigure(write_through=True)
        elif words[0] == "-B":
            sys.dont_write_bytecode = True
        elif not os.path.isdir(sys.argv[0]):  # keep a folder: it has the program's modules
            del sys.path[0]
        return program
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        return words[1], NO_FILE
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        return RUN_MODULE, NO_FILE
    path = os.path.abspath(words[0])
    if os.path.isdir(path):
        path = os.path.join(path, MAIN)
    sys.argv, sys.path[0] = words, os.path.dirname(path)
    with open(path, encoding="utf-8") as file:
        return file.read(), path


def end(error: BaseException | None = None) -> None:
    """End this process as Python does after an error, but without destroying its modules.

    The globals of this file are the program's at this point, so the imports are here.
    """
    import atexit
    import os
    import signal
    import sys
    import threading

    code = error.code if isinstance(error, SystemExit) else 1 if error else 0
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    elif error and not isinstance(error, SystemExit):
        error.__traceback__ = error.__traceback__.tb_next  # without this file
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if not file.closed:
            file.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    __serve__ = serve_parent if sys.argv[1].isdigit() else serve
    __program__, __file__ = prepare(__serve__(sys.argv[1], sys.argv[2:]))
    __code__ = compile(__program__, __file__, "exec")
    __end__ = end
    if __file__ == NO_FILE:
        del __file__
    for name in [name for name in globals() if not name.startswith("__")]:
        del globals()[name]
    del globals()["name"]
    try:
        exec(__code__, globals())
    except BaseException as __error__:
        __end__(__error__)
    __end__()
