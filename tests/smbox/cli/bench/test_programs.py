"""Programs of the benchmark end, by themselves or not."""

from __future__ import annotations

import signal
import subprocess
import sys

from smbox.cli.bench import programs


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_program_ends_with_its_input():
    program = start("import sys; sys.stdin.read(); sys.exit(7)")
    programs.stop(program)
    assert program.returncode == 7


def test_one_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(programs, "STOP_S", 0.05)
    program = start("import time; print('up', flush=True); time.sleep(600)")
    program.stdout.readline()
    programs.stop(program)
    assert program.returncode == -signal.SIGKILL
