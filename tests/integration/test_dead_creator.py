"""Tests that a process that dies in create or free blocks nobody and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import smbox.memory
from smbox import dtypes
from smbox.memory.layout import PREFIX, RegionState
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import listing
from smbox.testing.regions import build

pytestmark = pytest.mark.shares

MEMORY_NBYTES = 64 << 20

DIES_BEFORE_PUBLISHING = """
from smbox.paths.control import ControlPath
def dying(*arguments, **more):
    os.kill(os.getpid(), signal.SIGKILL)
ControlPath.publish = dying
box.create("some", init=np.full(300_000, 7, "int64"))
"""

DIES_FREEING = """
from smbox.client.transfer import Call
region = box.attach("some")
def dying(*arguments, **more):
    os.kill(os.getpid(), signal.SIGKILL)
Call.advance = dying
box.free(region)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_creator_killed_before_it_has_published(place, preloaded, transport):
    process = place.script(DIES_BEFORE_PUBLISHING, transport, python=preloaded)
    assert process.wait(60) == -signal.SIGKILL
    box = place.box(transport)
    with pytest.raises(smbox.RegionNotFoundError):
        box.attach("some", timeout_s=0.0)
    assert (box.create("some", init=np.full(300_000, 8, "int64")).get() == 8).all()
    place.restart()
    assert [region.name for region in box.regions()] == ["some"]
    assert len(listing(f"{PREFIX}{place.name}.region.")) == 1
    assert (box.attach("some").get() == 8).all()


def test_a_client_killed_when_it_has_asked_to_free(place, preloaded):
    box = place.box()
    region = box.create("some", 4)
    script = place.script(DIES_FREEING, "tcp", python=preloaded)
    assert script.wait(60) == -signal.SIGKILL
    with contextlib.suppress(smbox.RegionNotFoundError, smbox.RegionFreedError):
        box.free("some")  # unless its last message had arrived
    with pytest.raises(smbox.RegionFreedError):
        region.get()
    assert box.create("some", 5).shape == (5,)


def killed_at(line, run):
    """Run ``run`` in a child that is killed before its ``line``-th line in smbox.memory."""
    folder = str(Path(smbox.memory.__file__).parent)
    child = os.fork()
    if child == 0:
        left = [line]

        def trace(frame, event, _):
            if not frame.f_code.co_filename.startswith(folder):
                return None
            left[0] -= event == "line"
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        status = 1
        try:
            run(lambda: sys.settrace(trace))
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("what", ["create", "free"])
def test_a_node_killed_anywhere_in_it(what):
    """Afterwards every region is complete and has an address of its own.

    A child of this process would take three times as long to fork: torch is loaded here.
    """
    subprocess.run([sys.executable, __file__, what], check=True, timeout=300)


def kill_anywhere_in(what):
    spec = RegionSpec("some", dtypes.by_name("float32"), (150_000,))
    line, seen, killed = 1, set(), True
    while killed:
        name = f"test-{secrets.token_hex(4)}"

        def run(begin, name=name):
            memory = NodeMemory.open(name, MEMORY_NBYTES)
            if what == "create":
                begin()
                address = memory.superblock.take_address(spec.nbytes)
                memory.regions[address] = build(name, spec, address, 3.0)
            else:
                region = build(name, spec, memory.superblock.take_address(spec.nbytes), 3.0)
                memory.regions[region.address] = region
                begin()
                memory.free(region)
            sys.settrace(None)

        killed = killed_at(line, run)
        memory = NodeMemory.open(name, MEMORY_NBYTES)
        try:
            regions = list(memory.regions.values())
            seen.add(len(regions))
            for region in regions:
                assert region.state == RegionState.LIVE
                assert (region.array() == 3).all()
                assert region.address < memory.superblock.high_water
            assert len(listing(f"{PREFIX}{name}.region.")) == len(regions)
            assert listing(f"{PREFIX}{name}.building.") == []
        finally:
            memory.close(keep=False)
        line += 1
    assert seen == {0, 1}
    assert line > 5


if __name__ == "__main__":
    kill_anywhere_in(sys.argv[1])
