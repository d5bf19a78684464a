"""Tests of publishers that are killed or stopped, and of their successors."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
import torch

import smbox
from smbox.keys import Role
from smbox_torch import Publisher, Subscriber

pytestmark = pytest.mark.shares

SIZE = 1 << 19
LEASE_S = 1.0

PUBLISHES = f"""
import torch
from smbox_torch import Publisher

state = {{"a": torch.ones({SIZE}), "b": torch.ones({SIZE})}}
publisher = Publisher(box, "w", state, lease_s={LEASE_S})
print(os.getpid(), publisher.publish(), flush=True)
"""

STOPS_IN_THE_MIDDLE = (
    PUBLISHES
    + """
puts = []
put_nb = smbox.Region.put_nb
def stopping(region, x):
    if ".buffer-" in region.name:
        puts.append(region)
        if len(puts) == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
    return put_nb(region, x)

smbox.Region.put_nb = stopping
for tensor in state.values():
    tensor.fill_(7)
try:
    publisher.publish()
except smbox.SmboxError as error:
    print(type(error).__name__, flush=True)
print(len(puts), flush=True)
"""
)


def found(box):
    subscriber = Subscriber(box, "w")
    version = subscriber.pull(timeout_s=0.0)
    return version, {
        value for each in subscriber.state.values() for value in each.unique().tolist()
    }


def first_version(process):
    """Wait for version 1; return its publisher's pid, which may be a child of the process."""
    pid, version = map(int, process.stdout.readline().split())
    assert version == 1
    return pid


def wait_until_stopped(pid):
    deadline_s = time.monotonic() + 60.0
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_second_publisher_is_refused_until_the_first_is_killed(preloaded, place, transport):
    box = place.box(transport)
    first = place.script(PUBLISHES + "sys.stdin.read()", transport, python=preloaded)
    pid = first_version(first)
    with pytest.raises(smbox.RankTakenError) as caught:
        Publisher(box, "w", {"a": torch.zeros(1)}, lease_s=LEASE_S)
    assert caught.value.facts["pid"] == pid
    assert caught.value.facts["host"]
    assert found(box) == (1, {1.0})
    os.kill(pid, signal.SIGKILL)
    first.wait(60.0)
    with Publisher(box, "w", {"a": torch.zeros(1)}, lease_s=LEASE_S) as second:
        assert second.publish() == 2
    assert found(box) == (2, {0.0})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_publisher_that_was_stopped_for_too_long_changes_nothing(preloaded, place, transport):
    """It is stopped in a publication and continues after a successor has published."""
    box = place.box("shm")
    first = place.script(STOPS_IN_THE_MIDDLE, transport, python=preloaded)
    pid = first_version(first)
    wait_until_stopped(pid)
    assert found(box) == (1, {1.0})
    state = {"a": torch.full((SIZE,), 20.0), "b": torch.full((SIZE,), 20.0)}
    with Publisher(box, "w", state, lease_s=LEASE_S) as second:
        assert found(box) == (1, {1.0})
        assert second.publish() == 2
        os.kill(pid, signal.SIGCONT)
        assert first.stdout.readline() == "LeaseLostError\n"
        assert first.stdout.readline() == "2\n"
        assert found(box) == (2, {20.0})
        assert second.publish() == 3
    assert found(box) == (3, {20.0})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_versions_outlive_the_node(place, transport):
    box = place.box(transport)
    subscriber = Subscriber(box, "w")
    state = {"a": torch.ones(SIZE)}
    with Publisher(box, "w", state) as publisher:
        assert publisher.publish() == 1
        place.restart()
        assert subscriber.pull() == 1
        state["a"] += 1
        assert publisher.publish() == 2
        assert subscriber.pull(newer_than=1) == 2
        assert subscriber.state["a"].unique().tolist() == [2.0]


def test_a_reader_needs_no_more_than_to_read_its_names(guarded):
    trainer = guarded.box(guarded.key("trainer", prefix="w."))
    reader = guarded.box(guarded.key("reader", Role.READ, "w."))
    with Publisher(trainer, "w", {"a": torch.ones(SIZE)}) as publisher:
        subscriber = Subscriber(reader, "w")
        assert publisher.publish() == 1
        assert subscriber.pull() == 1
        assert subscriber.state["a"].unique().tolist() == [1.0]
    with pytest.raises(smbox.AccessDeniedError):
        Publisher(reader, "w", {"a": torch.ones(SIZE)})
    with Publisher(trainer, "w", {"a": torch.zeros(SIZE)}) as publisher:
        assert publisher.publish() == 2
        assert subscriber.pull(newer_than=1) == 2
