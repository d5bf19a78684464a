"""Mapped memory that a daemon thread reads while the interpreter exits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smbox.memory.mapping import HUGE_NBYTES

# atexit runs its callbacks in reverse order. "read_once_more" is registered first, so it runs
# after those of smbox and of weakref.finalize, which registers itself when it is first used.
PROGRAM = """
import atexit, sys, threading

is_exiting, has_read = threading.Event(), threading.Event()

def read_once_more():
    is_exiting.set()
    print("read" if has_read.wait(30) else "not read", flush=True)

atexit.register(read_once_more)

import os
import numpy as np
from smbox.memory.segment import Segment

segment = Segment.create(f"smbox.exit-{os.getpid()}", int(sys.argv[1]))
segment.unlink()
view = segment.bytes
view[:] = 1

def read():
    is_exiting.wait()
    if int(view.sum()) == view.size:
        has_read.set()
    while True:  # numpy reads without the GIL: the end of the interpreter does not stop it
        np.broadcast_to(view, (1 << 20, view.size)).sum(dtype=np.uint8)

threading.Thread(target=read, daemon=True).start()
sys.exit(7)
"""


@pytest.mark.parametrize("nbytes", [4096, HUGE_NBYTES + 4096])
def test_a_daemon_thread_may_read_memory_until_the_process_ends(nbytes):
    command = [sys.executable, "-c", PROGRAM, str(nbytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "read\n", "")
