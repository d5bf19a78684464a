"""Calls in a signal handler inside a call of the same thread, which must not wait for it."""

from __future__ import annotations

import signal
import threading

import pytest

from smbox import Box
from smbox.config import ClientConfig
from smbox.errors import ConfigError
from smbox.testing.inproc_box import inproc_paths


@pytest.fixture
def inside(node):
    """Call functions in a signal handler inside another one, when it sends to the node."""
    deliver, former = node.hub.deliver, signal.getsignal(signal.SIGUSR1)

    def run(nested, job):
        refused = []

        def handler(*_):
            for call in nested:
                with pytest.raises(ConfigError, match="set a flag and return"):
                    call()
                refused.append(call)

        def strike(connection, frames):
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and frames and not refused:
                signal.raise_signal(signal.SIGUSR1)
            deliver(connection, frames)

        signal.signal(signal.SIGUSR1, handler)
        node.hub.deliver = strike
        job()
        node.hub.deliver = deliver
        assert refused == nested

    yield run
    node.hub.deliver = deliver
    signal.signal(signal.SIGUSR1, former)


def test_a_member_is_refused_inside_a_call_of_its_thread(boxes, join, inside):
    """It waited for ever for the call that the handler had interrupted."""

    def report(progress):
        member.progress = progress

    with join(boxes(), lease_s=60.0) as member:
        inside([member.members, member.missing], member.members)
        inside([lambda: report(1), member.finish], lambda: report(2))
        assert (member.progress, len(member.members())) == (2, 1)


def test_a_lock_is_refused_inside_a_call_of_its_thread(boxes, inside):
    lock = boxes().lock("l", lease_s=60.0, timeout_s=60.0)
    inside([lock.holder, lock.acquire], lock.holder)
    with lock:
        inside([lock.holder], lambda: lock.fence and lock.holder())
    assert lock.holder() is None


def test_a_call_is_refused_while_its_thread_opens_the_box(node, inside):
    """A forked child, and a pickled copy, open a box in their first call."""
    paths = inproc_paths(node.connect, ClientConfig("inproc://node", timeout_s=60.0))
    with Box(paths) as box:
        counter = box.counter("c")
        paths.abandon()
        inside([lambda: counter.add(1), lambda: box.counter("d")], lambda: counter.add(2))
        assert counter.value == 2
