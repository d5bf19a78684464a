"""A client that is stopped in the middle of a commit delays others, and loses nothing."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import smbox

STOPS_INSIDE = """
from smbox.memory import accel
def stopping(*arguments):
    accel.journaled = journaled
    os.kill(os.getpid(), signal.SIGSTOP)
    journaled(*arguments)
journaled, accel.journaled = accel.journaled, stopping
region = box.attach("sum")
region.accumulate(np.ones(region.shape, region.dtype))
"""


@pytest.mark.parametrize("ends", [signal.SIGCONT, signal.SIGKILL])
def test_others_time_out_and_go_on(place, ends):
    local, remote = place.box("shm"), place.box("tcp")
    region = local.create("sum", 100_000, "int64")
    ones = np.ones(100_000, np.int64)
    process = place.script(STOPS_INSIDE, "shm", SMBOX_ACCEL="0")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    here, there = region.accumulate_nb(ones), remote.attach("sum").accumulate_nb(ones)
    with pytest.raises(smbox.RequestTimeoutError) as caught:
        here.wait(timeout_s=0.05)
    assert caught.value.facts["holder_pid"] == process.pid
    with pytest.raises(smbox.RequestTimeoutError):
        there.wait(timeout_s=0.05)
    other = remote.create("other", 4, "int64")  # on another channel than the one that waits
    assert other.info.nbytes == 32
    os.kill(process.pid, ends)
    here.wait()
    there.wait()
    assert process.wait(60) == (0 if ends == signal.SIGCONT else -signal.SIGKILL)
    done = 3 if ends == signal.SIGCONT else 2
    assert (region.get() == done).all()
    assert region.version == 2 * done
