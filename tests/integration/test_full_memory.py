"""Tests with a full /dev/shm: a clear error, nothing half made, and no SIGBUS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

FULL = """
import numpy as np, smbox
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.segment import listing, room_nbytes

MIB = 1 << 20
with smbox.local(memory="1GiB", transport=TRANSPORT, timeout_s=60.0) as box:
    kept = box.create("kept", MIB, "uint8", init=5)
    before = listing("smbox.")
    for init in (0, 1, np.ones(64 * MIB, "uint8")):
        try:
            box.create("large", 64 * MIB, "uint8", init)
        except smbox.OutOfMemoryError as error:
            assert "/dev/shm" in str(error), error
        else:
            raise AssertionError("there was no room")
    assert [name for name in listing("smbox.") if ".slot." not in name] == [
        name for name in before if ".slot." not in name
    ]
    filler = open("/dev/shm/filler", "wb")
    while True:
        try:
            filler.write(bytes(MIB // 4))
            filler.flush()
        except OSError:
            break
    assert (kept.get() == 5).all()  # a read needs no room
    ones = np.ones(MIB, "uint8")
    try:  # the first change needs room for a journal, and over the wire for its answers
        kept.fetch_and_op(ones)
    except smbox.OutOfMemoryError:
        pass
    else:
        raise AssertionError("there was no room")
    os.unlink("/dev/shm/filler")
    filler.close()
    assert (kept.get() == 5).all()
    assert (kept.fetch_and_op(ones) == 5).all()
    assert (kept.get() == 6).all()
assert listing("smbox.") == []
print("ok")
"""

FREED = """
import os, signal, subprocess, sys, time
import numpy as np, smbox

MIB = 1 << 20
with smbox.local(memory="1GiB", transport="tcp", timeout_s=60.0) as box:
    region = box.create("w", 24 * MIB, "uint8", init=5)
    for _ in range(5):
        command = [sys.executable, "-c", READER, box.address, "tcp"]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert reader.stdout.readline() == "ready\\n"
        time.sleep(0.3)
        os.kill(reader.pid, signal.SIGSTOP)
        box.free(region)
        filler = open("/dev/shm/filler", "wb")
        while True:  # pages that were given back could not be had again
            try:
                filler.write(bytes(MIB // 4))
                filler.flush()
            except OSError:
                break
        os.kill(reader.pid, signal.SIGCONT)
        assert reader.stdout.readline() == "freed\\n"
        assert box.stats()["incarnation"] == 1
        os.unlink("/dev/shm/filler")
        filler.close()
        reader.wait()
        deadline_s = time.monotonic() + 10
        while True:  # the node's ZeroMQ frees frames when it finds the connection closed
            try:
                region = box.create("w", 24 * MIB, "uint8", init=5)
                break
            except smbox.OutOfMemoryError:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
print("ok")
"""


@pytest.fixture(scope="module")
def confined(preloaded):
    """Run code in a mount namespace with a small /dev/shm, in which each process is a fork."""

    def run(code):
        mounted = 'mount -t tmpfs -o size=32m tmpfs /dev/shm && exec "$0" -c "$1"'
        command = ["unshare", "-m", "sh", "-c", mounted, preloaded, code]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    tried = run("print('ok')")
    if tried.returncode != 0:
        pytest.skip(f"a /dev/shm of its own cannot be mounted: {tried.stderr.strip()}")
    return run


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_no_room(confined, transport):
    tried = confined(f"import os\nTRANSPORT = {transport!r}\n{FULL}")
    assert (tried.returncode, tried.stdout) == (0, "ok\n"), tried.stderr
    assert os.path.ismount("/dev/shm")


def test_a_region_is_freed_while_it_is_sent(confined, reader):
    tried = confined(f"READER = {reader!r}\n{FREED}")
    assert (tried.returncode, tried.stdout) == (0, "ok\n"), tried.stderr
