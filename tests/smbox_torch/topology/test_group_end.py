"""The end of a worker of a group that averages at a memory node, as the others see it."""

from __future__ import annotations

import subprocess
import threading
import uuid
from contextlib import nullcontext

import pytest
import torch

from smbox.errors import LayoutMismatchError, StepMismatchError, WorkerLostError
from smbox_torch.averaging.box_group import BoxGroup
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.hybrid.root import HybridRoot
from smbox_torch.topology import Link, Links, choose
from smbox_torch.topology.measuring import boxes_of
from smbox_torch.world import World

pytestmark = [pytest.mark.timeout(200), pytest.mark.shares]
NEAR, FAR = Link(1e-4, 2e8, 2e8), Link(1e-4, 1e7, 1e7)


def test_a_worker_of_a_group_with_fewer_batches_is_named_at_once(run_hosts):
    """Worker 1 has ended its loop, and waits for worker 0 to exchange its last step."""
    links = Links(((NEAR, FAR), (NEAR, FAR), (FAR, NEAR)), (0, 1), (0, 1, 2))
    topology, name = choose(links, nbytes=1 << 20, period=2), uuid.uuid4().hex

    def work(world: World, box) -> None:
        options = {"world": world, "timeout_s": 20.0}
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
        optimizer = HybridSGD(sgd, box, name, period=2, groups=topology, **options)
        if world.rank < 2:
            optimizer.step()
        if world.rank == 0:
            with pytest.raises(StepMismatchError, match="rank 1 finished after 1 steps"):
                optimizer.step()
        with pytest.raises(WorkerLostError) if world.rank == 1 else nullcontext():
            optimizer.close(exchange=world.rank == 1)

    run_hosts(3, 1, work)


def test_a_root_whose_exchange_fails_is_named_at_once(run_hosts, monkeypatch):
    """The others of its group wait for its move."""
    links = Links(((NEAR, FAR), (NEAR, FAR), (FAR, NEAR)), (0, 1), (0, 1, 2))
    topology, name = choose(links, nbytes=1 << 20, period=1), uuid.uuid4().hex

    def fail(_: HybridRoot, xs, moves) -> None:
        raise ConnectionError("the root's node is gone")

    def work(world: World, box) -> str:
        options = {"world": world, "timeout_s": 10.0}
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
        optimizer = HybridSGD(sgd, box, name, groups=topology, **options)
        if world.rank == 2:
            optimizer.close()
            return ""
        with pytest.raises((ConnectionError, WorkerLostError)) as caught:
            optimizer.step()
        return str(caught.value)

    monkeypatch.setattr(HybridRoot, "request_moves", fail)
    first, second, _ = run_hosts(3, 1, work)
    assert "node is gone" in first
    assert "rank 0 left after an error" in second


@pytest.mark.parametrize("steps", [0, 1])
def test_a_worker_that_leaves_after_an_error_is_not_said_to_have_finished(run_hosts, steps):
    def train(world: World, box) -> None:
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        node = boxes_of(box)[1]
        group = BoxGroup(node, "left", range(2), world.rank, timeout_s=10.0)
        with SyncGroup(sgd, world=world, group=group) as optimizer:
            for _ in range(steps):
                optimizer.step()
            optimizer.step(lambda: 1 / (1 - world.rank))

    def work(world: World, box) -> str:
        with pytest.raises((ZeroDivisionError, WorkerLostError)) as caught:
            train(world, box)
        return str(caught.value)

    assert "rank 1 left after an error" in run_hosts(2, 1, work)[0]


def test_a_group_waits_for_another_one_longer_than_its_workers_for_each_other(run_hosts):
    links = Links(((NEAR, FAR), (NEAR, FAR), (FAR, NEAR)), (0, 1), (0, 1, 2))
    topology, name = choose(links, nbytes=1 << 20, period=1), uuid.uuid4().hex
    have_begun, has_ended, timeout_s = threading.Barrier(3), threading.Event(), 4.0

    def work(world: World, box) -> None:
        options = {"world": world, "timeout_s": timeout_s}
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
        with HybridSGD(sgd, box, name, groups=topology, **options) as optimizer:
            optimizer.step()
            have_begun.wait()
            if world.rank == 2:
                assert not has_ended.wait(timeout_s + 1.0)
            optimizer.finish(timeout_s=60.0)
        has_ended.set()

    run_hosts(3, 1, work)


KILLED = """
import os, signal, sys
import torch
import smbox
from smbox_torch import SyncGroup
from smbox_torch.averaging.box_group import BoxGroup
from smbox_torch.world import World
world = World(rank=1, world_size=2, local_rank=1, local_world_size=2)
group = BoxGroup(smbox.connect(sys.argv[1]), sys.argv[2], (0, 1), 1, timeout_s=60.0)
sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
SyncGroup(sgd, world=world, group=group).step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_is_killed_is_named_long_before_the_timeout(address, box, preloaded):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    killed = subprocess.Popen([preloaded, "-c", KILLED, address, name := uuid.uuid4().hex])
    with killed:
        group = BoxGroup(box, name, (0, 1), 0, timeout_s=60.0)
        with SyncGroup(sgd, world=World(0, 0, 2, 2), group=group) as optimizer:
            optimizer.step()
            with pytest.raises(WorkerLostError, match="rank 1 died"):
                optimizer.step()


def test_a_worker_whose_construction_fails_has_left_the_group(box):
    """The regions of its gradients belong to another model."""
    group = BoxGroup(box, name := uuid.uuid4().hex, (0,), 0, timeout_s=10.0)
    other = box.create(f"{name}.gradient0.float32", 7)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(LayoutMismatchError):
        SyncGroup(sgd, world=World(0, 0, 1, 1), group=group)
    box.free(other)
    with SyncGroup(sgd, world=World(0, 0, 1, 1), group=group) as optimizer:
        optimizer.step()
