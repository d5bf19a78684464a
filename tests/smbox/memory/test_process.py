from __future__ import annotations

import os
import subprocess
import sys

from smbox.memory import process


def test_this_process_lives():
    pid, began = process.own()
    assert pid == os.getpid()
    assert process.is_alive(pid, began)
    assert not process.is_alive(pid, began + 1)
    assert not process.is_alive(pid, 0)


def test_a_zombie_does_not_live():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = process.started(child.pid)
    assert process.is_alive(child.pid, began)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process.is_alive(child.pid, began)
    child.communicate()
    assert process.started(child.pid) == 0
