"""Tests that no pull outlasts its timeout by more than a second while the node is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time

import pytest
import torch

import smbox
from smbox_torch import Publisher, Subscriber

pytestmark = pytest.mark.shares

LEASE_S = 60.0
OUTLASTS_S = 1.0
BUSY_S = 1.0
COUNT = 8 << 18
"""Elements of the published tensor, whose 8 MiB are read in several messages."""


@contextlib.contextmanager
def ending_in(seconds):
    """Check that the block ends in time."""
    begun_s = time.monotonic()
    yield
    assert time.monotonic() - begun_s < seconds + OUTLASTS_S + BUSY_S


@pytest.fixture
def published(place):
    """Yield the node, which continues at the end, and has a version of "w"."""
    with Publisher(place.box(), "w", {"a": torch.ones(COUNT)}, lease_s=LEASE_S) as publisher:
        publisher.publish()
        try:
            yield place
        finally:
            place.node.send(signal.SIGCONT)


@pytest.fixture
def stops_in_copies(published, monkeypatch):
    """Return a function: from now on, a read of a tensor stops the node."""
    get_nb = smbox.Region.get_nb

    def stopping(region, out=None):
        if out is not None:
            published.node.send(signal.SIGSTOP)
        return get_nb(region, out)

    return lambda: monkeypatch.setattr(smbox.Region, "get_nb", stopping)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("timeout_s", [0.0, 1.5])
def test_a_first_pull_ends_in_time(published, transport, timeout_s):
    """On mapped memory it finds the newest version, but cannot open its buffer."""
    subscriber = Subscriber(published.box(transport), "w")
    published.node.send(signal.SIGSTOP)
    with ending_in(timeout_s), pytest.raises(smbox.RequestTimeoutError) as caught:
        subscriber.pull(timeout_s=timeout_s)
    assert caught.value.facts["op"] == "pull"
    published.node.send(signal.SIGCONT)
    assert subscriber.pull() == 1


def test_a_copy_ends_in_time(published, stops_in_copies):
    subscriber = Subscriber(published.box("tcp"), "w")
    assert subscriber.pull() == 1
    stops_in_copies()
    with ending_in(1.0), pytest.raises(smbox.RequestTimeoutError) as caught:
        subscriber.pull(timeout_s=1.0)
    assert caught.value.facts["op"] == "pull"
    assert (subscriber.version, dict(subscriber.state)) == (0, {})


@pytest.mark.parametrize("stops_in_copy", [False, True])
def test_a_pull_waits_longer_than_the_box(published, stops_in_copies, stops_in_copy):
    subscriber = Subscriber(published.box("tcp", timeout_s=0.5), "w")
    if stops_in_copy:
        stops_in_copies()
    else:
        published.node.send(signal.SIGSTOP)
    continuing = threading.Timer(2.0, published.node.send, (signal.SIGCONT,))
    continuing.start()
    assert subscriber.pull(timeout_s=60.0) == 1
    continuing.join()


def test_a_copy_that_is_cancelled_ends_soon(published, stops_in_copies):
    subscriber = Subscriber(published.box("tcp"), "w")
    assert subscriber.pull() == 1
    stops_in_copies()

    async def cancel():
        pulling = asyncio.create_task(subscriber.apull(timeout_s=60.0))
        await asyncio.sleep(0.5)
        pulling.cancel()
        await pulling

    with ending_in(0.5), pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_a_copy_goes_on_after_the_timeout_as_long_as_data_arrives(published):
    subscriber = Subscriber(published.box("tcp"), "w")
    published.proxy.pace = 2.0 * COUNT  # bytes in a second: the copy takes two
    begun_s = time.monotonic()
    assert subscriber.pull(timeout_s=1.0) == 1
    assert time.monotonic() - begun_s > 1.5
    published.proxy.pace = 1e9
