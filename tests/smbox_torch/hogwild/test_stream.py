from __future__ import annotations

import threading

import pytest

from smbox_torch.hogwild.stream import Stream

LONG_S = 60.0


def test_work_is_repeated_until_it_is_stopped():
    turns = threading.Semaphore(0)
    stream = Stream(turns.release, pause_s=0.0)
    for _ in range(5):
        assert turns.acquire(timeout=LONG_S)
    stream.check()
    assert stream.close()
    while turns.acquire(blocking=False):
        pass
    assert not stream.close()
    assert not turns.acquire(blocking=False)


def test_a_long_pause_delays_no_stop():
    turns = threading.Semaphore(0)
    stream = Stream(turns.release, pause_s=1e6)
    assert turns.acquire(timeout=LONG_S)
    assert stream.close()


def test_an_error_ends_it_and_is_raised_once():
    called = threading.Event()

    def fail() -> None:
        called.set()
        raise ConnectionError("the memory is gone")

    stream = Stream(fail, pause_s=0.0)
    assert called.wait(LONG_S)
    stream._thread.join(LONG_S)
    with pytest.raises(ConnectionError):
        stream.check()
    stream.check()
    assert not stream.close()


def test_closing_raises_what_nobody_has_seen():
    stream = Stream(lambda: {}["none"], pause_s=0.0)
    with pytest.raises(KeyError):
        stream.close()
