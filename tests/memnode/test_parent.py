from __future__ import annotations

import os
import subprocess
import sys

from memnode.parent import ParentWatch


def test_the_own_process_lives():
    assert not ParentWatch(os.getpid()).has_ended()


def test_an_ended_process_is_noticed_even_before_it_is_collected():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        watch = ParentWatch(child.pid)
        assert not watch.has_ended()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        assert watch.has_ended()
    finally:
        child.communicate()
    assert watch.has_ended()


def test_a_process_gone_from_the_start_has_ended():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(60)
    assert ParentWatch(child.pid).has_ended()


def test_another_process_of_the_same_pid_is_not_the_parent():
    watch = ParentWatch(os.getpid())
    watch._started -= 1
    assert watch.has_ended()
