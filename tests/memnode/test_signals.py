from __future__ import annotations

import os
import select
import signal

import pytest

from memnode.signals import StopSignal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_wakes_a_poll(number):
    stop = StopSignal()
    with stop.installed():
        assert stop.number == 0
        os.kill(os.getpid(), number)
        ready, _, _ = select.select([stop.fd], [], [], 30)
        assert ready
        assert stop.number == number


def test_the_former_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stop = StopSignal()
    with stop.installed():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(stop.fd)
