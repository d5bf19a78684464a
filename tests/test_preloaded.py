"""A fork of a process with torch imported does as a Python that begins anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TIMEOUT_S = 60.0
TELL = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ["WORD"], sys.stdin.read(), __name__]))
print(sorted(name for name in globals() if not name.startswith("__")))
print(sys.path[0], globals().get("__file__"))
sys.stderr.write("told\\n")
sys.exit(7)
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


@pytest.mark.parametrize("form", ["code", "file"])
def test_a_program_finds_what_it_would_find(preloaded: str, tmp_path: Path, form: str):
    path = tmp_path / "program.py"
    path.write_text(TELL)
    words = [str(path)] if form == "file" else ["-c", TELL]
    new, forked = (
        run(python, *words, "a b", "-c", cwd=tmp_path, input="some words")
        for python in (sys.executable, preloaded)
    )
    if form == "code":  # it has no file
        new.stdout = new.stdout.replace("None", "<string>")
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


def test_what_is_no_program_is_run_by_python_itself(preloaded: str):
    assert run(preloaded, "-m", "json.tool", input="[1]").stdout == "[\n    1\n]\n"


def test_an_error_and_a_signal_end_it_as_they_would(preloaded: str):
    failed = run(preloaded, "-c", "raise KeyError('x')")
    assert failed.returncode == 1
    assert failed.stderr.endswith("KeyError: 'x'\n")
    for sign in (signal.SIGKILL, signal.SIGTERM):
        killed = run(preloaded, "-c", f"import os; os.kill(os.getpid(), {int(sign)})")
        assert killed.returncode == -sign


def test_who_kills_it_kills_the_program(preloaded: str):
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen(
        [preloaded, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        program = psutil.Process(int(process.stdout.readline()))
        process.kill()
    assert psutil.wait_procs([program], timeout=TIMEOUT_S)[1] == []
