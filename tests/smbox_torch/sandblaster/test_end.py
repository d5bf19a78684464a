"""Ends of Sandblaster: workers killed, the coordinator killed, closed, or never made."""

from __future__ import annotations

import math
import subprocess
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import smbox
from smbox.errors import (
    ConfigError,
    ConnectError,
    RegionExistsError,
    RegionNotFoundError,
    WorkerLostError,
)
from smbox.member_record import Record
from smbox_torch import Sandblaster, SandblasterWorker
from smbox_torch.sandblaster import coordinator_lease, tickets
from smbox_torch.sandblaster.coordinator_lease import CoordinatorLease, CoordinatorWatch
from smbox_torch.sandblaster.run_regions import RunRegions
from smbox_torch.sandblaster.scheduler import PortionScheduler

pytestmark = pytest.mark.shares

WAIT_S = 60.0

KILLED = """
import os, signal, sys
import torch
import smbox
from smbox_torch import SandblasterWorker
torch.set_num_threads(1)
x = torch.zeros(200_000, requires_grad=True)
def loss_of(portion):
    if portion == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return (portion + 1) * x.sum()
with smbox.connect(sys.argv[1], transport=sys.argv[2], timeout_s=60.0) as box:
    SandblasterWorker(box, [x], sys.argv[3], rank=0).run(loss_of)
"""


def test_a_killed_worker_leaves_no_portion_out_and_none_twice(box, run, preloaded):
    x = torch.zeros(200_000)
    with ThreadPoolExecutor(1) as pool:
        with Sandblaster(box, [x], run, workers=2, portions=6) as optimizer:
            words = [box.address, box.transport, run]
            killed = subprocess.Popen([preloaded, "-c", textwrap.dedent(KILLED), *words])
            begun = pool.submit(optimizer.evaluate)
            assert killed.wait(WAIT_S) == -9  # with a portion in its hands

            def work():
                own = torch.zeros(200_000, requires_grad=True)
                with smbox.connect(box.address, timeout_s=WAIT_S) as other:
                    SandblasterWorker(other, [own], run, rank=1).run(
                        lambda portion: (portion + 1) * own.sum()
                    )

            helper = threading.Thread(target=work)
            helper.start()
            begun.result(WAIT_S)
            assert (optimizer.vectors.gradient.get() == 21).all()
            assert optimizer.portions.added == [2, 4]
        helper.join(WAIT_S)


def test_the_end_frees_all_but_x_and_waiting_workers_stop_at_once(
    box, run, follow, names_of, preloaded
):
    x = torch.zeros(200_000)
    with ThreadPoolExecutor(2) as pool:
        with Sandblaster(box, [x], run, workers=3, portions=6) as optimizer:
            words = [box.address, box.transport, run]
            killed = subprocess.Popen([preloaded, "-c", textwrap.dedent(KILLED), *words])
            begun = pool.submit(optimizer.evaluate)
            assert killed.wait(WAIT_S) == -9
            more = {"rank": 1, "dtype": torch.float32, "size": 200_000}
            waiting = pool.submit(follow, run, torch.sum, **more)
            begun.result(WAIT_S)
            optimizer.step()
        began_s = time.monotonic()
        assert waiting.result(WAIT_S) > 0
        assert time.monotonic() - began_s < WAIT_S / 4
    assert names_of(box, run) == [f"{run}.x"]
    optimizer.close()
    began_s = time.monotonic()
    with pytest.raises(RegionNotFoundError, match="has ended"):
        SandblasterWorker(box, [x.requires_grad_()], run, rank=0, timeout_s=WAIT_S)
    assert time.monotonic() - began_s < WAIT_S / 4
    box.free(optimizer.vectors.x)
    with pytest.raises(RegionNotFoundError, match="no coordinator"):  # one may begin
        SandblasterWorker(box, [x], run, rank=0, timeout_s=0.05)


def test_a_worker_waits_for_a_coordinator_that_only_begins(box, run, monkeypatch):
    asked = threading.Semaphore(0)

    def has_ended(*given):
        found = coordinator_lease.has_ended(*given)
        asked.release()
        return found

    monkeypatch.setattr(tickets, "has_ended", has_ended)
    monkeypatch.setattr(tickets, "POLL_S", 0.01)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(tickets.Tickets, box, run, 0, WAIT_S)
        assert asked.acquire(timeout=WAIT_S)  # there is nothing
        portions = PortionScheduler(box, run, 1, 1, 3, "float32")
        x = box.create(f"{run}.x", 3)
        for _ in range(2):
            assert asked.acquire(timeout=WAIT_S)
        portions.open()
        coming.result(WAIT_S)
    portions.close()
    box.free(x)


def test_a_box_that_closes_ends_the_run(box, run, names_of):
    with smbox.connect(box.address, transport=box.transport, timeout_s=WAIT_S) as own:
        Sandblaster(own, [torch.zeros(3)], run, workers=2, portions=1)
        worker_of = [torch.zeros(3, requires_grad=True)]
        worker = SandblasterWorker(box, worker_of, run, rank=0, timeout_s=WAIT_S)
    worker.run(lambda _: pytest.fail("there is no round"))
    assert names_of(box, run) == [f"{run}.x"]


def test_a_run_that_ends_while_another_thread_closes_the_box_is_freed(
    node, run, names_of, monkeypatch
):
    """The box was closed first, and the regions stayed."""
    own = smbox.connect(node.address, timeout_s=WAIT_S)
    optimizer = Sandblaster(own, [torch.zeros(3)], run, workers=1, portions=1)
    free = smbox.Box.free

    def free_late(box, region):
        monkeypatch.undo()
        thread = threading.Thread(target=own.close)
        thread.start()
        thread.join()
        free(box, region)

    monkeypatch.setattr(smbox.Box, "free", free_late)
    with pytest.raises(ConfigError, match="closed"):
        optimizer.close()
    assert names_of(node, run) == [f"{run}.x"]


def test_a_box_closes_though_its_memory_is_gone(node, run, monkeypatch):
    own = smbox.connect(node.address, timeout_s=WAIT_S)
    Sandblaster(own, [torch.zeros(3)], run, workers=1, portions=1)

    def lose(*_):
        raise ConnectError("no node answers")

    monkeypatch.setattr(smbox.Box, "free", lose)
    own.close()
    with pytest.raises(ConfigError, match="closed"):
        own.stats()


def test_a_coordinator_that_cannot_be_made_leaves_nothing(box, run, names_of):
    with Sandblaster(box, [torch.zeros(3)], run, workers=1, portions=1) as first:
        before = names_of(box, run)
        with pytest.raises(RegionExistsError):
            Sandblaster(box, [torch.ones(3)], run, workers=1, portions=1)
        assert names_of(box, run) == before
        assert first.vectors.x.get().tolist() == [0, 0, 0]
    for word in ("slot0", "board"):
        other = box.create(f"{run}-2.{word}", 1)
        with pytest.raises(RegionExistsError):
            Sandblaster(box, [torch.zeros(3)], f"{run}-2", workers=1, portions=1)
        assert names_of(box, f"{run}-2") == [f"{run}-2.{word}"]
        box.free(other)


@pytest.mark.parametrize(
    "bad", [{"timeout_s": math.nan}, {"timeout_s": "x"}, {"lease_s": "x"}, {"lease_s": 0}]
)
def test_times_that_are_none_make_nothing(box, run, names_of, bad):
    with pytest.raises(ConfigError, match=f"{next(iter(bad))} is a"):
        Sandblaster(box, [torch.zeros(3)], run, workers=1, portions=1, **bad)
    assert names_of(box, run) == []


DIES = """
import os, signal, sys
import torch
import smbox
from smbox_torch import Sandblaster
torch.set_num_threads(1)
box = smbox.connect(sys.argv[1], transport=sys.argv[2], timeout_s=60.0)
x = torch.zeros(3, dtype=torch.float64)
optimizer = Sandblaster(box, [x], sys.argv[3], workers=2, portions=2, lease_s=1.0)
print(os.getpid(), flush=True)
sys.stdin.readline()
if sys.argv[4] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
optimizer.portions.begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["killed", "killed in a round"])
def test_workers_learn_that_the_coordinator_was_killed(box, run, follow, preloaded, when):
    words = [preloaded, "-c", DIES, box.address, box.transport, run, when]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as coordinator:
        try:
            pid = int(coordinator.stdout.readline())
            with ThreadPoolExecutor(1) as pool:
                worker = pool.submit(follow, run, torch.sum)
                coordinator.stdin.write("\n")
                coordinator.stdin.flush()
                assert coordinator.wait(WAIT_S) == -9
                with pytest.raises(WorkerLostError, match="the coordinator died") as caught:
                    worker.result(WAIT_S / 2)
            assert caught.value.facts["pid"] == pid
        finally:
            coordinator.kill()


def test_a_coordinator_that_left_just_before_its_end_has_left_and_not_died(
    box, run, monkeypatch
):
    lease = CoordinatorLease(box, run, WAIT_S)
    watch = CoordinatorWatch(box, run)

    def leave_and_end(_: Record) -> bool:
        lease._member.leave()
        return True

    with monkeypatch.context() as patch:
        patch.setattr(Record, "is_known_dead", leave_and_end)
        assert "the coordinator left without" in str(watch.lost())
    lease.release()


def test_a_coordinator_has_the_lease_that_was_asked_for(node, run):
    with Sandblaster(node, [torch.zeros(3)], run, workers=1, portions=1, lease_s=3.0):
        short = CoordinatorWatch(node, run).poll_s
    with Sandblaster(node, [torch.zeros(3)], f"{run}-2", workers=1, portions=1, lease_s=6.0):
        assert CoordinatorWatch(node, f"{run}-2").poll_s == 2.0 * short


def test_a_region_that_another_process_freed_is_no_error_at_the_end(box, run, names_of):
    portions = PortionScheduler(box, run, 1, 2, 3, "float32")
    box.free(portions.slots[0])
    portions.close()
    assert not names_of(box, run)


class Losing:
    """A box that is cut off after its first region."""

    def create(self, name, **_):
        if name.endswith(".second"):
            raise RegionExistsError("the name is in use")
        return name

    def free(self, _):
        raise ConnectError("no node answers")


def test_the_error_that_ended_a_start_is_told_and_not_that_of_its_undoing():
    regions = RunRegions(Losing(), "run")
    undoing = regions.free_on_error()
    regions.create("first")
    with pytest.raises(RegionExistsError), undoing:
        regions.create("second")
