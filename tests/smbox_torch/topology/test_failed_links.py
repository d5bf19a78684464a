"""Measurements of links that fail or are slow."""

from __future__ import annotations

import dataclasses
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import smbox
from smbox.errors import ConfigError, ConnectError, LimitError, RequestTimeoutError
from smbox_torch.topology import measure, measuring
from smbox_torch.topology.measuring import FIRST_NBYTES, PROBE_NBYTES
from smbox_torch.world import World

pytestmark = pytest.mark.shares

ALONE = World(rank=0, local_rank=0, world_size=1, local_world_size=1)


@pytest.fixture
def failing(monkeypatch):
    """``failing(verb, make)``: let this verb raise ``make()`` on each probe; the errors."""

    def fail(verb, make):
        errors, work = [], getattr(smbox.Region, verb)

        def refuse(region, *args, **more):
            if region.name.endswith(".probe") and any(each.size > 1 for each in args):
                errors.append(make())
                raise errors[-1]
            return work(region, *args, **more)

        monkeypatch.setattr(smbox.Region, verb, refuse)
        return errors

    return fail


@pytest.mark.parametrize("verb", ["put", "get"])
def test_the_cause_of_the_first_link_that_failed_is_told(box, failing, verb):
    errors = failing(verb, lambda: RequestTimeoutError("no answer"))
    with pytest.raises(ConnectError, match="memory node 0") as caught:
        measure(box, uuid.uuid4().hex, world=ALONE)
    assert len(errors) == 2
    assert caught.value.__cause__ is errors[0]


def test_a_measurement_that_was_interrupted_leaves_no_earlier_one(box, failing):
    name = uuid.uuid4().hex
    measure(box, name, world=ALONE)
    failing("put", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        measure(box, name, world=ALONE)
    assert np.isnan(box.attach(f"{name}.topology.links.1x2").get()).all()


def test_a_timeout_that_is_none_is_named_and_nothing_is_made(box):
    name = uuid.uuid4().hex
    with pytest.raises(ConfigError, match="link_timeout_s"):
        measure(box, name, world=ALONE, link_timeout_s=float("nan"))
    assert not [info for info in box.regions() if info.name.startswith(name)]


def test_a_name_that_is_too_long_is_refused_and_nothing_is_made(box):
    name = uuid.uuid4().hex * 5
    with pytest.raises(LimitError, match="128 bytes"):
        measure(box, name, world=ALONE)
    assert not [info for info in box.regions() if info.name.startswith(name)]


def test_each_start_gathers_by_itself(box):
    """Arrivals of workers that were killed in an earlier start must not count."""
    name = uuid.uuid4().hex
    for restart in range(2):
        measure(box, name, world=dataclasses.replace(ALONE, restart=restart))
    met = [
        info.name for info in box.regions() if info.name.startswith(f"{name}.topology.begin")
    ]
    assert len(met) == 2


def test_the_host_of_a_node_is_that_of_the_worker_that_maps_it(address, worlds, monkeypatch):
    put = smbox.Region.put

    def refuse(region, *args, **more):
        if region.name.endswith(".probe") and not region.is_local:
            raise RequestTimeoutError("no answer")
        put(region, *args, **more)

    def work(world, transport):
        with smbox.connect(address, transport=transport, timeout_s=60.0) as box:
            with pytest.raises(ConnectError) as caught:
                measure(box, name, world=world)
            return caught.value.facts

    name = uuid.uuid4().hex
    monkeypatch.setattr(smbox.Region, "put", refuse)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, worlds(2, 1), ("tcp", "shm")))
    assert [facts["node_host"] for facts in found] == [socket.gethostname()] * 2


def test_a_slow_link_carries_no_large_transfer(box, monkeypatch):
    sizes, put = set(), smbox.Region.put

    def note(region, data, **more):
        if region.name.endswith(".probe"):
            sizes.add(data.size)
        put(region, data, **more)

    monkeypatch.setattr(smbox.Region, "put", note)
    measure(box, uuid.uuid4().hex, world=ALONE)
    assert sizes == {FIRST_NBYTES, PROBE_NBYTES}
    sizes.clear()
    monkeypatch.setattr(measuring, "SLOW_S", 0.0)
    measure(box, uuid.uuid4().hex, world=ALONE)
    assert sizes == {FIRST_NBYTES}


def test_no_worker_leaves_before_all_have_looked_who_is_alive(run_hosts, monkeypatch):
    """Else a worker with a link that failed would be told of as dead."""
    name, left, read = uuid.uuid4().hex, threading.Event(), smbox.Member.read

    def late(member):
        if member.rank == 0:
            assert not left.wait(0.1)
        return read(member)

    def work(world, box):
        measure(box, name, world=world)
        left.set()

    monkeypatch.setattr(smbox.Member, "read", late)
    run_hosts(2, 1, work)
