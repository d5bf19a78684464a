from __future__ import annotations

import signal
import sys
import threading

import pytest

from smbox.errors import SystemLimitError
from smbox.testing.interrupts import interrupted_at_return
from smbox_torch.hogwild.stream import Stream

LONG_S = 60.0


def test_work_is_repeated_until_it_is_stopped():
    turns = threading.Semaphore(0)
    stream = Stream(turns.release, pause_s=0.0)
    for _ in range(5):
        assert turns.acquire(timeout=LONG_S)
    stream.check()
    stream.close()
    while turns.acquire(blocking=False):
        pass
    stream.close()  # called again, as after an interrupt
    assert not turns.acquire(blocking=False)


def test_a_long_pause_delays_no_stop():
    turns = threading.Semaphore(0)
    stream = Stream(turns.release, pause_s=1e6)
    assert turns.acquire(timeout=LONG_S)
    stream.close()
    assert turns.acquire(blocking=False)  # the last call


def test_an_error_ends_it_and_is_raised_once(streamer):
    called, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        called.set()
        go_on.wait(LONG_S)
        raise ConnectionError("the memory is gone")

    stream = Stream(fail, pause_s=0.0)
    assert called.wait(LONG_S)
    thread = streamer()
    go_on.set()
    thread.join(LONG_S)
    with pytest.raises(ConnectionError):
        stream.check()
    stream.check()
    stream.close()


def test_closing_raises_what_nobody_has_seen():
    stream = Stream(lambda: {}["none"], pause_s=0.0)
    with pytest.raises(KeyError):
        stream.close()


def test_a_close_that_was_interrupted_waits_again():
    begun, release, done = (threading.Event() for _ in range(3))

    def work() -> None:
        begun.set()
        assert release.wait(LONG_S)
        done.set()

    stream = Stream(work, pause_s=0.0)
    assert begun.wait(LONG_S)
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        stream.close()
    interrupt.join()
    threading.Timer(0.1, release.set).start()
    stream.close()
    assert done.is_set()


def test_a_close_that_was_interrupted_at_the_end_of_any_call_can_be_repeated():
    ends = []

    def interrupt_each() -> None:
        at, is_over = 0, False
        while not is_over:
            at += 1
            stream = Stream(lambda: None, pause_s=1e6)
            is_over = not interrupted_at_return(at, stream.close)
            stream.close()
            ends.append(at)

    closer = threading.Thread(target=interrupt_each, daemon=True)
    closer.start()
    closer.join(LONG_S)
    assert not closer.is_alive()
    assert len(ends) > 3


def test_whatever_ends_the_thread_is_raised():
    stream = Stream(sys.exit, pause_s=0.0)
    with pytest.raises(SystemExit):
        stream.close()


def test_a_program_may_end_without_a_close(streamer):
    stream = Stream(lambda: None, pause_s=0.0)
    assert streamer().daemon
    stream.close()


def test_a_process_without_threads_is_told_what_to_do(monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(SystemLimitError, match="can't start"):
        Stream(lambda: None, pause_s=0.0)
