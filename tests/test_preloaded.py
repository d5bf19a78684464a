"""Tests that a program of preloaded.py behaves as one of a new Python."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROGRAM = str(Path(__file__).with_name("preloaded.py"))
TIMEOUT_S = 60.0
TELL = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ["WORD"], sys.stdin.read(), __name__]))
print(sorted(name for name in globals() if not name.startswith("__")))
print(sys.path[0], globals().get("__file__"))
print(sys.stdout.write_through, sys.dont_write_bytecode)
sys.stderr.write("told\\n")
sys.exit(7)
"""
STARTS = """
import multiprocessing, subprocess, sys

def tell(queue):
    queue.put("torch._dynamo" in sys.modules)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=tell, args=(queue,))
    process.start()
    print(queue.get(), flush=True)
    process.join()
    code = "import sys; print('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def run(python: str, *words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words],
        env=os.environ | {"WORD": "of the environment"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **options,
    )


@pytest.mark.parametrize("flags", [[], ["-B", "-P", "-u"]])
@pytest.mark.parametrize("form", ["code", "file", "folder"])
def test_a_program_finds_what_it_would_find(
    preloaded: str, tmp_path: Path, form: str, flags: list[str]
):
    path = tmp_path / ("__main__.py" if form == "folder" else "program.py")
    path.write_text(TELL)
    words = flags + {"code": ["-c", TELL], "file": [str(path)], "folder": [str(tmp_path)]}[form]
    new, forked = (
        run(python, *words, "a b", "-c", cwd=tmp_path, input="some words")
        for python in (sys.executable, preloaded)
    )
    assert (forked.returncode, forked.stdout) == (new.returncode, new.stdout)
    assert (forked.returncode, forked.stderr) == (7, "told\n")


def test_torch_is_there_when_a_program_begins(preloaded: str):
    code = "import sys; print('torch._dynamo' in sys.modules)"
    assert run(preloaded, "-c", code).stdout == "True\n"


def test_its_variables_say_how_many_threads_it_has(preloaded: str):
    code = "import torch; print(torch.get_num_threads())"
    for threads in ("1", "3"):
        words = ["env", f"OMP_NUM_THREADS={threads}", preloaded, "-c", code]
        assert run(*words).stdout == f"{threads}\n"


def test_processes_that_a_program_starts_are_forked_as_well(preloaded: str, tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_text(STARTS)
    assert run(preloaded, str(path)).stdout == "True\nTrue\n"


def test_a_program_is_in_the_namespaces_of_who_starts_it(preloaded: str):
    words = ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc"]
    if os.geteuid():
        words += ["--user", "--map-root-user"]
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make namespaces")
    names = ["mnt", "net", "pid", "uts"]
    shell = "; ".join([*(f"readlink /proc/self/ns/{name}" for name in names), 'exec "$0" "$@"'])
    code = f"import os\nfor name in {names}: print(os.readlink('/proc/self/ns/' + name))"
    told = run(*words, "sh", "-c", shell, preloaded, "-c", code).stdout.splitlines()
    assert len(told) == 8
    assert told[:4] == told[4:]
    assert os.readlink("/proc/self/ns/net") not in told


def test_a_program_has_the_cores_of_who_starts_it(preloaded: str):
    core = min(os.sched_getaffinity(0))
    words = ["taskset", "--cpu-list", str(core), preloaded]
    code = "import os; print(os.sched_getaffinity(0))"
    assert run(*words, "-c", code).stdout == f"{{{core}}}\n"


def test_a_program_has_the_files_that_it_inherits(preloaded: str):
    read, write = os.pipe()
    code = f"import os; os.write({write}, b'told'); print(os.get_inheritable({write}))"
    try:
        assert run(preloaded, "-c", code, pass_fds=[write]).stdout == "True\n"
        assert os.read(read, 10) == b"told"
    finally:
        os.close(read)
        os.close(write)


def test_a_program_ends_with_its_exit_functions(preloaded: str):
    code = """
import atexit, weakref
atexit.register(print, "exit function")
weakref.finalize(kept := type("Kept", (), {})(), print, "finalizer")
"""
    told = run(preloaded, "-c", code).stdout
    assert sorted(told.splitlines()) == ["exit function", "finalizer"]


def test_a_module_is_run_as_a_program(preloaded: str):
    assert run(preloaded, "-m", "json.tool", input="[1]").stdout == "[\n    1\n]\n"


def test_what_is_no_program_is_run_by_python_itself(preloaded: str):
    code = "import sys; print(sys.flags.optimize, 'torch' in sys.modules)"
    assert run(preloaded, "-O", "-c", code).stdout == "1 False\n"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(preloaded: str, sign: signal.Signals):
    code = f"""
import signal, sys, time
signal.signal({int(sign)}, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    time.sleep(0.01)  # signal.pause() would miss a signal that comes just before it
"""
    with subprocess.Popen([preloaded, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(sign)
        assert process.wait(TIMEOUT_S) == 7


def test_an_error_and_a_signal_end_it_as_they_would(preloaded: str):
    for code in ("raise KeyError('x')", "raise SystemExit('why')", "raise SystemExit('')"):
        failed, wanted = (run(python, "-c", code) for python in (preloaded, sys.executable))
        assert failed.returncode == wanted.returncode == 1
        # Python 3.13 and newer also print the line of code.
        assert failed.stderr == wanted.stderr.replace(f"    {code}\n", "")
    for sign in (signal.SIGKILL, signal.SIGTERM):
        killed = run(preloaded, "-c", f"import os; os.kill(os.getpid(), {int(sign)})")
        assert killed.returncode == -sign
    interrupted = run(preloaded, "-c", "raise KeyboardInterrupt")
    assert interrupted.returncode == -signal.SIGINT
    assert interrupted.stderr.endswith("KeyboardInterrupt\n")


def test_its_server_ends_with_who_has_started_it(tmp_path: Path):
    words = [sys.executable, PROGRAM, str(tmp_path / "socket")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        server.stdout.close()
        assert server.wait(TIMEOUT_S) == 0


def test_who_kills_it_kills_the_program(preloaded: str):
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen(
        [preloaded, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        program = psutil.Process(int(process.stdout.readline()))
        process.kill()
    assert psutil.wait_procs([program], timeout=TIMEOUT_S)[1] == []


def test_programs_that_run_at_once_end_each_by_itself(preloaded: str):
    code = "import sys; sys.exit(int(sys.stdin.readline()))"
    started = [
        subprocess.Popen([preloaded, "-c", code], stdin=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    started[1].kill()
    for number in (3, 0, 2):
        started[number].communicate(f"{number + 1}\n", TIMEOUT_S)
    started[1].communicate(timeout=TIMEOUT_S)
    assert [each.returncode for each in started] == [1, -signal.SIGKILL, 3, 4]


def test_a_caller_that_asks_for_nothing_does_not_end_the_server(preloaded: str):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(preloaded).with_name("socket")))
    assert run(preloaded, "-c", "print('on')").stdout == "on\n"


def test_words_variables_and_folders_of_any_bytes_arrive(preloaded: str, tmp_path: Path):
    folder = tmp_path / "two\nlines"
    folder.mkdir()
    code = "import os, sys; print(sys.argv[1:], os.environ['LINES'], [os.getcwd()])"
    words = ["-c", code, "", "\udcff", "gr\u00f6\u00dfe\n"]
    environment = os.environ | {"LINES": "a=b\nc", "PYTHONIOENCODING": "utf-8"}
    new, forked = (
        subprocess.check_output([python, *words], cwd=folder, env=environment)
        for python in (sys.executable, preloaded)
    )
    assert forked == new
