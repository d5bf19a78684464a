"""Tests that ``Children`` of servers.py starts programs as ``subprocess.Popen`` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("quick_popen")

TIMEOUT_S = 60.0
CHILD = """
import os, signal, sys
print(os.getppid(), "memnode.server" in sys.modules, sys.argv[1:], sys.executable, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_quick_popen_starts_children_of_this_process(quick_popen):
    command = [sys.executable, "-c", CHILD, "word"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with quick_popen(command, **pipes) as child:
        told = f"{os.getpid()} True ['word'] {sys.executable}\n"
        assert child.stdout.readline() == told
        child.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        child.send_signal(signal.SIGCONT)
        child.communicate("on\n", TIMEOUT_S)
    assert child.returncode == -signal.SIGKILL


def test_a_quick_popen_starts_a_child_in_a_session_of_its_own(quick_popen):
    code = "import os, sys; print(os.getsid(0) == os.getpid(), 'memnode.server' in sys.modules)"
    for begins in (True, False):
        with quick_popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=begins,
        ) as child:
            assert child.communicate(timeout=TIMEOUT_S)[0] == f"{begins} True\n"


def test_a_quick_popen_starts_other_programs_as_usual(quick_popen, tmp_path: Path):
    code = "import os, sys; print(os.getcwd(), 'memnode' in sys.modules)"
    for words, options in ((["env", sys.executable], {}), ([sys.executable], {"umask": 0})):
        with quick_popen(
            [*words, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path, **options
        ) as usual:
            assert usual.communicate(timeout=TIMEOUT_S)[0] == f"{tmp_path} False\n"
