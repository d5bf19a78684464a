"""Pulls that do not block an event loop, and their end when they are cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from smbox_torch import Subscriber
from smbox_torch.publishing import subscriber as subscribing

pytestmark = pytest.mark.shares

SIZE = 1000


def test_pulls_of_an_event_loop(box, name, publisher, state, publish, values):
    subscriber = Subscriber(box, name)
    target = {key: torch.zeros_like(tensor) for key, tensor in state.items()}

    async def follow():
        waiting = asyncio.create_task(subscriber.apull(into=target))
        await asyncio.sleep(0)
        publish(publisher, state, 1)
        assert await waiting == 1
        found = []
        publish(publisher, state, 2)
        async for version in subscriber:
            found.append(version)
            if version == 4:
                break
            publish(publisher, state, version + 1)
        return found

    assert asyncio.run(follow()) == [2, 3, 4]
    assert values(target) == [[1]] * 3


def test_a_pull_that_checks_for_its_cancel_goes_on_waiting(
    box, name, publisher, state, monkeypatch, publish
):
    monkeypatch.setattr(subscribing, "POLL_S", 0.001)
    subscriber = Subscriber(box, name)

    async def follow():
        waiting = asyncio.create_task(subscriber.apull())
        _, pending = await asyncio.wait([waiting], timeout=0.1)
        assert pending
        publish(publisher, state, 1)
        return await waiting

    assert asyncio.run(follow()) == 1


def test_a_pull_does_not_wait_for_other_work_of_the_event_loop(
    box, name, publisher, state, publish
):
    """Else a few subscribers that wait for a version would stop all others, and their ends."""
    publish(publisher, state, 1)
    busy = threading.Event()

    async def follow():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        working = loop.run_in_executor(None, busy.wait)
        pulling = asyncio.create_task(Subscriber(box, name).apull())
        done, _ = await asyncio.wait([pulling], timeout=60.0)
        busy.set()
        await working
        return len(done), await pulling

    assert asyncio.run(follow()) == (1, 1)


def test_a_cancelled_pull_is_over(box, name, publisher, state, publish, values):
    subscriber = Subscriber(box, name)
    target = {key: torch.zeros_like(tensor) for key, tensor in state.items()}

    async def cancel():
        waiting = asyncio.create_task(subscriber.apull(into=target, timeout_s=100.0))
        await asyncio.wait([waiting], timeout=0.2)
        started_s = time.monotonic()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return time.monotonic() - started_s

    assert asyncio.run(cancel()) < 50.0
    publish(publisher, state, 1)
    assert values(target) == [[0]] * 3
    assert subscriber.pull(into=target) == 1


def test_a_pull_that_is_cancelled_twice_is_over_too(
    box, name, publisher, state, publish, values
):
    subscriber = Subscriber(box, name)
    target = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    lost = []

    async def cancel():
        asyncio.get_running_loop().set_exception_handler(lambda _, told: lost.append(told))
        waiting = asyncio.create_task(subscriber.apull(into=target, timeout_s=100.0))
        for timeout_s in (0.2, 0.0):
            await asyncio.wait([waiting], timeout=timeout_s)
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancel())
    gc.collect()
    assert lost == []
    publish(publisher, state, 1)
    assert values(target) == [[0]] * 3


def test_a_pull_that_the_end_of_asyncio_run_cancels_is_over(
    box, name, publisher, state, hooked, publish, values
):
    publish(publisher, state, 1)
    reads, ended = threading.Event(), []

    def read_slowly(verb, region):
        if verb == "get_nb" and region.nbytes > SIZE:
            reads.set()
            threading.Event().wait(0.5)

    subscriber = Subscriber(hooked(box, read_slowly), name)
    target = {key: torch.zeros_like(tensor) for key, tensor in state.items()}

    async def pull():
        try:
            await subscriber.apull(into=target)
        finally:
            ended.append((subscriber.version, values(target)))

    async def leave():
        task = asyncio.create_task(pull())
        while not reads.is_set():
            await asyncio.sleep(0)
        return task

    assert asyncio.run(leave()).cancelled()
    assert ended == [(1, [[1]] * 3)]
