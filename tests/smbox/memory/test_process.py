from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from smbox.errors import SystemLimitError
from smbox.memory import process


def test_this_process_lives():
    pid, began = process.identity()
    assert pid == os.getpid()
    assert process.is_alive(pid, began)
    assert not process.is_alive(pid, began + 1)
    assert not process.is_alive(pid, 0)


def test_a_zombie_does_not_live():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = process.start_time(child.pid)
    assert process.is_alive(child.pid, began)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process.is_alive(child.pid, began)
    child.communicate()
    assert process.start_time(child.pid) == 0


def test_who_can_open_no_file_learns_nothing_of_a_process(no_more_files):
    with no_more_files(), pytest.raises(SystemLimitError, match="ulimit"):
        process.identity()


PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import os, signal
from smbox.memory import process
process.signal_on_parent_death(signal.SIGKILL)
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
'''])
os.waitid(os.P_PID, child.pid, os.WSTOPPED)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_child_ends_with_a_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.wait(60)
    parent.stdout.close()
    deadline_s = time.monotonic() + 60
    while process.start_time(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
