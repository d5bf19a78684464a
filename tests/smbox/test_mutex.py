"""Mutexes in a forked child."""

from __future__ import annotations

import os
import signal
import threading

from smbox.mutex import Mutex


def test_a_forked_child_waits_for_no_thread_of_its_parent():
    """Its copy of a mutex that a thread held at the fork is never released."""
    mutex, is_held, go_on = Mutex(), threading.Event(), threading.Event()

    def hold():
        is_held.set()
        go_on.wait()

    thread = threading.Thread(target=mutex.holding, args=(None, hold))
    thread.start()
    is_held.wait()
    if (child := os.fork()) == 0:
        signal.alarm(2)
        mutex.holding(None, lambda: os._exit(7))
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        go_on.set()
        thread.join()
