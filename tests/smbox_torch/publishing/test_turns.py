"""Pulls of one subscriber by several threads, which run one after another."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch

import smbox
from smbox.testing.interrupts import interrupted_as_it_acquires
from smbox_torch import Publisher, Subscriber
from smbox_torch.publishing import subscriber as subscribing

pytestmark = pytest.mark.shares

STATE = {"a": torch.ones(1 << 19), "n": torch.tensor(1)}


def test_threads_take_turns(box, name):
    subscriber = Subscriber(box, name)
    with Publisher(box, name, STATE) as publisher:
        publisher.publish()
    gate = threading.Barrier(4)

    def pull():
        gate.wait(60)
        target = {key: torch.zeros_like(tensor) for key, tensor in STATE.items()}
        return [
            (subscriber.pull(into=target), [each.unique().tolist() for each in target.values()])
            for _ in range(5)
        ]

    with ThreadPoolExecutor(4) as pool:
        found = [each.result(60) for each in [pool.submit(pull) for _ in range(4)]]
    assert found == [[(1, [[1], [1]])] * 5] * 4


def test_the_wait_for_another_pull_has_a_timeout(box, name, hooked, monkeypatch):
    monkeypatch.setattr(subscribing, "POLL_S", 600.0)
    refused = []

    def pull_again(verb, _region):
        if verb == "get_nb" and not refused:
            with pytest.raises(smbox.RequestTimeoutError, match="another pull") as caught:
                pool.submit(subscriber.pull, timeout_s=0.0).result(60)
            refused.append(caught.value)
            assert subscriber.copy_s == 0.0

    subscriber = Subscriber(hooked(box, pull_again), name)
    with Publisher(box, name, STATE) as publisher, ThreadPoolExecutor(1) as pool:
        publisher.publish()
        began_s = time.monotonic()
        assert subscriber.pull() == 1
    assert len(refused) == 1
    assert 0.0 < subscriber.copy_s < time.monotonic() - began_s


class Held:
    """A hook of a box that holds the first read of a tensor until ``release`` is set."""

    def __init__(self) -> None:
        self.is_held, self.release = threading.Event(), threading.Event()

    def __call__(self, verb, region) -> None:
        if verb == "get_nb" and not self.is_held.is_set():
            self.is_held.set()
            self.release.wait(60.0)


def test_a_pull_goes_on_waiting_for_its_turn_until_its_deadline(box, name, hooked, monkeypatch):
    monkeypatch.setattr(subscribing, "POLL_S", 0.001)
    held = Held()
    subscriber = Subscriber(hooked(box, held), name)
    with Publisher(box, name, STATE) as publisher, ThreadPoolExecutor(2) as pool:
        publisher.publish()
        first = pool.submit(subscriber.pull)
        held.is_held.wait(60.0)
        second = pool.submit(subscriber.pull, timeout_s=600.0)
        assert not wait([second], timeout=0.1).done
        held.release.set()
        assert (first.result(60), second.result(60)) == (1, 1)


def test_a_cancelled_pull_does_not_wait_for_its_turn(box, name, hooked):
    held = Held()
    subscriber = Subscriber(hooked(box, held), name)

    async def cancel():
        waiting = asyncio.create_task(subscriber.apull(timeout_s=600.0))
        await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with Publisher(box, name, STATE) as publisher, ThreadPoolExecutor(1) as pool:
        publisher.publish()
        first = pool.submit(subscriber.pull)
        held.is_held.wait(60.0)
        asyncio.run(cancel())
        assert not first.done()
        held.release.set()
        assert first.result(60) == 1


def test_an_interrupt_right_after_the_wait_for_a_turn_leaves_it_to_the_next_pull(box, name):
    subscriber = Subscriber(box, name)
    with Publisher(box, name, STATE) as publisher:
        publisher.publish()
        assert interrupted_as_it_acquires(subscriber._mutex._lock, subscriber.pull)
        assert subscriber.pull(timeout_s=0.0) == 1
