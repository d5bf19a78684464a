from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

import smbox
from smbox_torch import Publisher, Subscriber

pytestmark = pytest.mark.shares

SIZE = 1 << 19  # 2 MiB of float32: four stripes


def test_a_pull_waits_for_a_newer_version(box, name, publisher, state, publish, values):
    with ThreadPoolExecutor(1) as pool:
        subscriber = Subscriber(box, name)
        first = pool.submit(subscriber.pull)
        assert publish(publisher, state, 1) == 1
        assert first.result(60) == 1
        second = pool.submit(subscriber.pull, newer_than=1, timeout_s=60.0)
        assert publish(publisher, state, 2) == 2
        assert second.result(60) == 2
    assert values(subscriber.state) == [[2], [2], [2]]


def test_what_never_comes_is_told_and_changes_nothing(
    box, name, publisher, state, publish, values
):
    subscriber = Subscriber(box, name)
    target = {key: torch.ones_like(tensor) for key, tensor in state.items()}
    with pytest.raises(smbox.RequestTimeoutError) as caught:
        subscriber.pull(into=target, timeout_s=0.05)
    assert caught.value.facts["outcome"] == "none"
    publish(publisher, state, 2)
    subscriber.pull()
    with pytest.raises(smbox.RequestTimeoutError):
        subscriber.pull(into=target, newer_than=1, timeout_s=0.05)
    assert values(target) == [[1], [1], [1]]
    assert subscriber.version == 1
    assert values(subscriber.state) == [[2], [2], [2]]


def test_a_pull_inside_a_pull_of_its_thread_is_refused(
    box, name, publisher, state, publish, values, hooked
):
    """As in a signal handler, which would wait for the call that it interrupts."""

    def before(*_):
        if nested:
            with pytest.raises(smbox.ConfigError, match="set a flag and return"):
                nested.pop().pull(timeout_s=0.0)

    publish(publisher, state, 3)
    subscriber = Subscriber(hooked(box, before), name)
    nested = [subscriber]
    assert subscriber.pull() == 1
    assert nested == []
    assert values(subscriber.state) == [[3], [3], [3]]


def test_names_choose_what_is_pulled(box, name, publisher, state, publish):
    publish(publisher, state, 3)
    subscriber = Subscriber(box, name)
    target = {"n": torch.tensor(1), "b": torch.zeros(SIZE, dtype=torch.bfloat16), "c": "else"}
    assert subscriber.pull(into=target, names=["b", "n"]) == 1
    assert (target["n"].item(), target["b"].unique().tolist(), target["c"]) == (3, [3], "else")
    assert list(subscriber.state) == ["b", "n"]
    assert subscriber.pull(names=iter(["a"])) == 1
    assert list(subscriber.state) == ["a"]
    assert subscriber.pull(names=[]) == 1
    assert dict(subscriber.state) == {}


def test_names_that_are_not_there_are_told(box, name, publisher, state, publish, values):
    publish(publisher, state, 5)
    subscriber = Subscriber(box, name)
    target = {key: tensor.clone().fill_(1) for key, tensor in state.items()}
    for into in (None, target):
        with pytest.raises(smbox.LayoutMismatchError, match="nowhere"):
            subscriber.pull(into=into, names=["a", "nowhere"])
    with pytest.raises(smbox.LayoutMismatchError, match="'n'"):
        subscriber.pull(into={"a": target["a"]}, names=["a", "n"])
    with pytest.raises(smbox.ConfigError):
        subscriber.pull(into=target, names="a")
    assert values(target) == [[1], [1], [1]]


class Overtaking:
    """Publishes twice just before certain reads of a buffer, so that it is overwritten.

    Args:
        publish: fills ``state`` and publishes it.
        publisher: of ``state``, with two buffers.
        state: all of whose elements become the number of the version.
        reads: which reads of a buffer, counted from 0.
    """

    def __init__(self, publish, publisher, state, reads) -> None:
        self._publish = partial(publish, publisher, state)
        self.reads = reads
        self.count = 0
        self.version = 0

    def publish(self) -> None:
        self.version += 1
        assert self._publish(self.version) == self.version

    def __call__(self, verb, region) -> None:
        if verb == "get_nb":
            self.count += 1
            if self.count - 1 in self.reads:
                self.publish()
                self.publish()


@pytest.mark.parametrize("read", range(3), ids=["before", "between", "after"])
@pytest.mark.parametrize("names", [["a", "b", "n"], ["n", "a"]], ids=["all", "some"])
def test_a_version_that_is_overwritten_while_it_is_read_is_never_seen(
    box, name, publisher, state, hooked, names, read, publish, values
):
    overtaking = Overtaking(publish, publisher, state, reads={read})
    overtaking.publish()
    target = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    subscriber = Subscriber(hooked(box, overtaking), name)
    assert subscriber.pull(into=target, names=names) == 3
    assert overtaking.count > 3
    assert values(subscriber.state) == [[3] for _ in names]
    assert [values(target)[list(state).index(key)] for key in names] == [[3] for _ in names]


def test_after_a_copy_that_failed_there_is_no_state(box, name, publisher, state, hooked):
    calls = []
    subscriber = Subscriber(hooked(box, lambda verb, region: calls and calls[0](verb)), name)
    publisher.publish()
    assert subscriber.pull() == subscriber.version == 1

    def fail(verb):
        def get_nb(*_args, **_more):
            raise ConnectionError("the memory is gone")

        calls[0] = lambda verb: get_nb  # the read after that of the version

    calls.append(fail)
    with pytest.raises(ConnectionError):
        subscriber.pull()
    assert (dict(subscriber.state), subscriber.version) == ({}, 0)


def test_a_reader_that_is_always_overtaken_is_told(
    box, name, publisher, state, hooked, publish, values
):
    overtaking = Overtaking(publish, publisher, state, reads=range(1, 1000, 3))
    overtaking.publish()
    target = {key: torch.full_like(tensor, 9) for key, tensor in state.items()}
    subscriber = Subscriber(hooked(box, overtaking), name)
    with pytest.raises(smbox.StaleVersionError) as caught:
        subscriber.pull(into=target, timeout_s=0.1)
    assert caught.value.facts["version"] == caught.value.facts["newest"] - 2
    assert values(target) == [[9], [9], [9]]
    assert (subscriber.version, dict(subscriber.state)) == (0, {})
    overtaking.reads = ()
    assert subscriber.pull(into=target) == overtaking.version
    assert values(target) == [[overtaking.version]] * 3


def test_a_version_can_be_asked_for_by_number_as_long_as_it_is_kept(
    box, name, state, publish, values
):
    subscriber = Subscriber(box, name)
    with Publisher(box, name, state, keep=3) as publisher, ThreadPoolExecutor(1) as pool:
        fourth = pool.submit(Subscriber(box, name).pull, version=4, timeout_s=60.0)
        for version in range(1, 5):
            publish(publisher, state, version)
        assert fourth.result(60) == 4
        for version in (2, 4, 3):
            assert subscriber.pull(version=version) == version
            assert values(subscriber.state) == [[version]] * 3
        with pytest.raises(smbox.StaleVersionError):
            subscriber.pull(version=1)
        for more in (
            {"version": 0},
            {"newer_than": -1},
            {"version": 2, "newer_than": 1},
            {"timeout_s": math.nan},
        ):
            with pytest.raises(smbox.ConfigError):
                subscriber.pull(**more)
        for more in (
            {"newer_than": 0.5},
            {"version": 1.0},
            {"version": True},
            {"newer_than": True},
        ):
            with pytest.raises(TypeError):
                subscriber.pull(**more)
        assert subscriber.version == 3


def test_a_reader_goes_on_when_buffers_are_freed_under_it(
    box, name, state, hooked, publish, values
):
    """A successor's first publication frees the buffers of its predecessor."""
    with Publisher(box, name, state) as publisher:
        publish(publisher, state, 1)
    with Publisher(box, name, state) as successor:
        once = iter([True])

        def succeed(verb, region):
            if verb == "get_nb" and region.nbytes > SIZE and next(once, False):
                publish(successor, state, 2)

        subscriber = Subscriber(hooked(box, succeed), name)
        assert subscriber.pull() == 2
        assert values(subscriber.state) == [[2]] * 3


def test_iteration_meets_each_newer_version(box, name, publisher, state, publish, values):
    subscriber = Subscriber(box, name)
    publish(publisher, state, 1)
    found = []
    for version in subscriber:
        found.append((version, values(subscriber.state)))
        if version == 3:
            break
        publish(publisher, state, version + 1)
    assert found == [(version, [[version]] * 3) for version in (1, 2, 3)]


def test_iterations_wait_for_ever(box, name):
    class Told(Subscriber):
        def pull(self, **more):
            return more

        async def apull(self, **more):
            return more

    subscriber = Told(box, name)
    forever = {"newer_than": 0, "timeout_s": math.inf}
    assert next(iter(subscriber)) == forever
    assert asyncio.run(anext(aiter(subscriber))) == forever


@pytest.mark.parametrize("damage", [b"\xff", b"{", b'{"entries": [], "nbytes": 0, "keep": 0}'])
def test_an_overwritten_layout_is_told_and_the_next_publisher_replaces_it(
    box, name, state, publish, values, damage
):
    with Publisher(box, name, state) as first:
        publish(first, state, 1)
    layout = box.attach(f"{name}.1.layout")
    layout.put(np.frombuffer(damage.ljust(layout.shape[0]), np.uint8))
    subscriber = Subscriber(box, name)
    with pytest.raises(smbox.ConfigError, match="was overwritten"):
        subscriber.pull()
    with Publisher(box, name, state) as second:
        publish(second, state, 2)
        subscriber.pull()
    assert values(subscriber.state) == [[2], [2], [2]]
