from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox.handle import when_all
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.local_queue import LocalWork

ONES = np.ones(2 * STRIPE_NBYTES // 8 + 4)


def test_a_signal_handler_while_a_request_is_left_to_rest_is_refused(box, held, monkeypatch):
    region, refused = box.create("some", init=ONES), []

    def handler(*_):
        with pytest.raises(ConfigError, match="set a flag and return"):
            region.put(ONES)
        refused.append(True)

    before = signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr(
        LocalWork, "release_locks", lambda _: signal.raise_signal(signal.SIGUSR1)
    )
    try:
        with held(region, 1):
            handle = region.accumulate_nb(ONES)  # waits for the stripe, and rests
        monkeypatch.undo()
        handle.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert refused


@pytest.mark.parametrize("ask", ["done", "wait", "all_done"])
def test_a_handle_asked_in_a_signal_handler_inside_a_verb_is_as_it_was(box, held, ask):
    """A refused question was kept as the end of the request, whose array was still read."""
    region, refused = box.create("some", init=0 * ONES), []
    with held(region, 1):
        handles = [region.accumulate_nb(ONES), region.accumulate_nb(ONES)]
    asked = when_all(handles).done if ask == "all_done" else getattr(handles[1], ask)

    def handler(*_):
        with pytest.raises(ConfigError, match="set a flag and return"):
            asked()
        refused.append(True)

    before = signal.signal(signal.SIGUSR1, handler)
    step = handles[0].work.step
    handles[0].work.step = lambda: (signal.raise_signal(signal.SIGUSR1), step())
    try:
        handles[0].wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert refused
    assert [handle.done() for handle in handles] == [True, True]
    when_all(handles).wait()
    assert [handle.outcome() for handle in handles] == ["all", "all"]
    assert (region.get() == 2).all()


def test_an_interrupt_inside_a_call_leaves_the_queue_to_every_thread(box, held):
    region = box.create("some", init=0 * ONES)
    with held(region, 1):
        handle = region.accumulate_nb(ONES)
    step = handle.work.step

    def interrupted():
        step()
        raise KeyboardInterrupt

    handle.work.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        handle.wait(1.0)
    handle.work.step = step
    other = threading.Thread(target=handle.work.advance, args=(2.0**62,))
    other.start()
    other.join(60.0)
    assert handle.done()
    region.accumulate(ONES)
    assert (region.get() == 2).all()


def test_a_call_in_a_signal_handler_between_two_calls_is_like_any_other(box):
    region = box.create("some", init=0 * ONES)
    before = signal.signal(signal.SIGUSR1, lambda *_: region.accumulate(ONES))
    try:
        region.accumulate(ONES)
        signal.raise_signal(signal.SIGUSR1)
        region.accumulate(ONES)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (region.get() == 3).all()
