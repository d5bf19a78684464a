"""Test of a client that is stopped in a commit: it delays others, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest

import smbox
from smbox.testing.chaos.commit_watch import catch

pytestmark = pytest.mark.shares

COUNT = 100_000  # elements: two stripes

ADDS = """
region = box.attach("sum")
ones = np.ones(region.shape, region.dtype)
region.accumulate(ones)
print("ready", flush=True)
for count in range(2, 1_000_000):
    region.accumulate(ones)
    if os.path.exists(sys.argv[3]):
        break
print(count, flush=True)
"""


@pytest.mark.parametrize("ends", [signal.SIGCONT, signal.SIGKILL])
def test_others_time_out_and_go_on(place, ends, tmp_path):
    local, remote = place.box("shm"), place.box("tcp")
    region = local.create("sum", COUNT, "int64")
    ones, enough = np.ones(COUNT, np.int64), tmp_path / "enough"
    process = place.script(ADDS, "shm", enough)
    assert process.stdout.readline() == "ready\n"
    assert catch(place.name, process.pid, random.Random(1), tries=3000)
    enough.touch()
    here, there = region.accumulate_nb(ones), remote.attach("sum").accumulate_nb(ones)
    with pytest.raises(smbox.RequestTimeoutError) as caught:
        here.wait(timeout_s=0.05)
    assert caught.value.facts["holder_pid"] == process.pid
    facts: dict[str, object] = {}
    while "holder_pid" not in facts:  # the node's notice comes later on a busy machine
        with pytest.raises(smbox.RequestTimeoutError) as caught:
            there.wait(timeout_s=0.5)
        facts = caught.value.facts
    assert facts["holder_pid"] == process.pid
    other = remote.create("other", 4, "int64")  # on another channel than the one that waits
    assert other.info.nbytes == 32
    os.kill(process.pid, ends)
    here.wait()
    there.wait()
    told = process.communicate(timeout=60)[0]
    assert process.returncode == (0 if ends == signal.SIGCONT else -signal.SIGKILL)
    stripes = np.split(region.get(), [1 << 16])
    assert all((values == values[0]).all() for values in stripes)
    done = [int(values[0]) - 2 for values in stripes]
    assert region.version == sum(done) + 4
    if ends == signal.SIGCONT:
        assert done == [int(told)] * 2
    else:
        assert done[0] - done[1] in {0, 1}
