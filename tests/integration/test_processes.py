"""Tests of boxes in forked, spawned and killed processes, mapped and over tcp."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import smbox

pytestmark = pytest.mark.shares  # the node keeps answers of channels that may resume

WAIT_S = 60.0
COUNT = 300_000
ROUNDS = 10

SPAWNING = f"""
import multiprocessing, sys
import numpy as np, smbox

def accumulate(region, counter, box, transport):
    for _ in range({ROUNDS}):
        region.accumulate(np.ones(region.shape, region.dtype))
        counter.add()
    assert box.transport == transport

if __name__ == "__main__":
    with smbox.connect(sys.argv[1], transport=sys.argv[2], timeout_s=60.0) as box:
        given = (box.attach("sum"), box.counter("steps"), box, sys.argv[2])
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=accumulate, args=given) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        sys.exit(max(worker.exitcode for worker in workers))
"""

FORKING = """
import os, sys
import numpy as np, smbox
box = smbox.connect(sys.argv[1], transport=sys.argv[2], timeout_s=60.0)
region, counter = box.attach("sum"), box.counter("steps")
ones = np.ones(region.shape, region.dtype)
region.accumulate(ones)
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        region.accumulate(ones)
        counter.add()
        assert box.transport == sys.argv[2]
        box.close()
        os._exit(0)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
region.accumulate(ones)
counter.add()
"""

ADDING_FOR_EVER = """
import sys
import numpy as np, smbox
box = smbox.connect(sys.argv[1], transport=sys.argv[2], timeout_s=60.0)
region = box.attach("sum")
ones = np.ones(region.shape, region.dtype)
print("ready", flush=True)
while True:
    region.accumulate(ones)
"""


@pytest.fixture(scope="module")
def address():
    command = [sys.executable, "-m", "memnode", "--json", "--memory", "512MiB"]
    command += ["--bind", "tcp://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield json.loads(process.stdout.readline())["address"]
        process.terminate()
        process.wait(WAIT_S)


@pytest.fixture(params=["shm", "tcp"])
def box(request, address):
    with smbox.connect(address, transport=request.param, timeout_s=WAIT_S) as box:
        box.create("sum", shape=(COUNT,), dtype="int64")
        counter = box.counter("steps")
        yield box
        box.free("sum")
        box.free(counter)


@contextlib.contextmanager
def script(box, code):
    command = [sys.executable, "-c", code, box.address, box.transport]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_spawned_processes_connect_by_themselves(box, tmp_path):
    """Spawn in a separate script, because spawning leaves a tracker process in its parent."""
    path = tmp_path / "spawning.py"
    path.write_text(SPAWNING)
    command = [sys.executable, str(path), box.address, box.transport]
    subprocess.run(command, check=True, timeout=WAIT_S)
    assert (box.attach("sum").get() == 2 * ROUNDS).all()
    assert box.counter("steps").value == 2 * ROUNDS


def test_forked_children_begin_anew_and_the_parent_goes_on(box):
    with script(box, FORKING) as process:
        assert process.wait(WAIT_S) == 0
    assert (box.attach("sum").get() == 4).all()
    assert box.counter("steps").value == 3


def test_a_killed_client_leaves_no_stripe_half_changed(box):
    region = box.attach("sum")
    ones = np.ones(COUNT, np.int64)
    for _ in range(3):
        with script(box, ADDING_FOR_EVER) as process:
            assert process.stdout.readline() == "ready\n"
            version = region.version
            region.wait(version=version + 5)
            os.kill(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
        region.accumulate(ones)
        stripe = smbox.memory.layout.STRIPE_NBYTES // 8
        contents = region.get()
        for first in range(0, COUNT, stripe):
            assert len(np.unique(contents[first : first + stripe])) == 1


def test_a_stopped_client_delays_nobody_beyond_the_timeout(box):
    """A stripe that a stopped client holds is busy: the request waits, and then continues."""
    region = box.attach("sum")
    ones = np.ones(COUNT, np.int64)
    with script(box, ADDING_FOR_EVER) as process:
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        handle = region.accumulate_nb(ones)
        holders = []
        try:
            handle.wait(timeout_s=0.5)
        except smbox.RequestTimeoutError as error:
            holders.append(error.facts["holder_pid"])
            os.kill(process.pid, signal.SIGCONT)
            handle.wait(timeout_s=WAIT_S)
        # empty: it held nothing when it was stopped; 0: it held a lock outside its commit
        assert set(holders) <= {process.pid, 0}
        assert time.monotonic() - began_s < WAIT_S
