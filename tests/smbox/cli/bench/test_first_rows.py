"""Rows of a fresh process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from smbox.cli.bench import first_rows
from smbox.cli.bench.first_calls import slowest_s

pytestmark = pytest.mark.shares


def test_the_slowest_call_counts_and_the_first_one_too(monkeypatch):
    ticks = iter([0.0, 3.0, 10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    assert slowest_s(lambda: None, 2) == 3.0


def test_each_verb_on_each_path_and_the_import(lab):
    found = list(first_rows.first_calls(lab))
    verbs = ("get", "put", "accumulate", "elastic")
    cases = [f"{path} slowest {verb} of 300" for path in ("shm", "tcp") for verb in verbs]
    assert [result.case for result in found] == [*cases, "import smbox"]
    assert all(result.goal.most == 20 for result in found[:-1])
    assert 0 < found[-1].figure < 60


BENCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
from smbox.cli.main import main
main(["bench", "--only", "first-calls"])  # with --quick it may end before Ctrl-C
"""


def test_ctrl_c_ends_the_benchmark_without_a_traceback_of_its_programs():
    bench = subprocess.Popen(
        [sys.executable, "-c", BENCH],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline_s = time.monotonic() + 60
        while not is_calling(bench.pid):
            assert bench.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.killpg(bench.pid, signal.SIGINT)  # as a terminal does it
        assert bench.communicate(timeout=60)[1] == ""
        assert bench.returncode == 130
    finally:
        bench.kill()
        bench.wait()


def is_calling(pid: int) -> bool:
    """Whether a program of first calls of the benchmark has imported what it needs."""
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):  # it has just ended
            if "smbox.cli.bench.first_calls" in child.cmdline():
                return any("_smbox-" in each.path for each in child.memory_maps())
    return False
