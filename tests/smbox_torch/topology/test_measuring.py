from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import threading
import time
import uuid

import pytest
import torch

import smbox
from smbox.errors import ConfigError, ConnectError, RequestTimeoutError, WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.topology import choose, measure
from smbox_torch.topology.measuring import turns
from smbox_torch.world import World

pytestmark = [pytest.mark.timeout(200), pytest.mark.shares]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("nodes", [1, 2, 5, 7])
def test_no_round_shares_a_worker_or_a_node_and_all_links_are_measured(
    workers: int, nodes: int
):
    each = [turns(rank, workers, nodes) for rank in range(workers)]
    for found in zip(*each, strict=True):  # one round
        busy = [node for node in found if node is not None]
        assert len(busy) == len(set(busy))
    for found in each:  # one worker
        assert sorted(node for node in found if node is not None) == list(range(nodes))


def test_all_workers_get_the_same_links_and_only_these_stay(run_hosts, box):
    name = uuid.uuid4().hex
    found = run_hosts(2, 2, lambda world, box: measure(box, name, world=world))
    assert all(links == found[0] for links in found)
    links = found[0]
    assert links.nodes == (0, 1)
    assert links.hosts == (0, 0, 1, 1)
    assert links.names == tuple(f"{socket.gethostname()} ({number})" for number in range(2))
    assert [len(row) for row in links.rows] == [2] * 4
    for row in links.rows:
        for link in row:
            assert 0.0 < link.latency_s < 10.0
            assert min(link.put_rate, link.get_rate) > 1e4
            assert not link.is_local  # the boxes were told to use tcp
    kept = [each.name for each in box.regions() if each.name.startswith(name)]
    assert f"{name}.topology.links.4x2" in kept
    assert not [each for each in kept if "probe" in each]


def test_links_are_measured_anew_under_the_same_name(run_hosts, box):
    name = uuid.uuid4().hex

    def work(world: World, box):
        time.sleep(0.5 * world.rank)  # the first would not wait for one who left before
        return measure(box, name, world=dataclasses.replace(world, launch=world.run_id))

    first, second = (run_hosts(2, 1, work)[0] for _ in "12")
    assert first.rows != second.rows
    met = [each for each in box.regions() if each.name.startswith(f"{name}.topology.begin")]
    assert len(met) == 2  # so that a worker killed in the first counts in no other


def test_hosts_may_reach_the_memory_by_different_addresses(run_hosts, monkeypatch):
    """As tcp://127.0.0.1:7070 on the node's own host: ``run_id`` contains the address."""
    name = uuid.uuid4().hex

    def work(world: World, box):
        world = dataclasses.replace(world, run_id=f"|{box.address}/{world.rank}")
        return measure(box, name, world=world, timeout_s=5.0)

    monkeypatch.setitem(smbox.join.__kwdefaults__, "lease_s", 1.0)
    first, second = run_hosts(2, 1, work)
    assert first == second


def test_a_worker_that_was_started_again_reads_what_the_others_work_by(run_hosts, box):
    name = uuid.uuid4().hex
    links = run_hosts(2, 1, lambda world, box: measure(box, name, world=world))[0]
    again = World(rank=1, local_rank=0, world_size=2, local_world_size=1, worker_restart=1)
    found = measure(box, name, world=again, timeout_s=1.0)
    assert (found.rows, found.hosts) == (links.rows, links.hosts)
    with pytest.raises(RequestTimeoutError, match="did not come"):  # nothing is measured yet
        measure(box, uuid.uuid4().hex, world=again, timeout_s=0.05)


def name_apart(box, node_id: int) -> str:
    """A name whose workers meet, and keep their links, on another node than this one."""
    while True:
        name = uuid.uuid4().hex
        at = f"{name}.topology"
        met = (at, f"{at}.links.2x2")
        if all(box.home_of(each).node.node_id != node_id for each in met):
            return name


def test_a_link_that_cannot_be_measured_is_told_to_all_workers_before_anything_is_made(
    run_hosts, box
):
    name = name_apart(box, 1)
    pid = box.stats()["node 1"]["pid"]

    met = threading.Barrier(2, timeout=60.0)

    def work(world: World, own) -> tuple[ConnectError, bool]:
        x = torch.nn.Parameter(torch.ones(3))
        try:
            if met.wait() == 0:
                os.kill(pid, signal.SIGSTOP)
            met.wait()
            with pytest.raises(ConnectError) as caught:
                HybridSGD(torch.optim.SGD([x], lr=1.0), own, name, groups="auto", world=world)
            met.wait()
        finally:
            os.kill(pid, signal.SIGCONT)
        return caught.value, bool((x == 1.0).all())

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measure.__kwdefaults__, "link_timeout_s", 1.5)
        found = run_hosts(2, 1, work)
    for error, is_unmoved in found:
        assert is_unmoved
        assert (error.facts["rank"], error.facts["node"]) == (0, 1)
        assert re.search(
            rf"rank 0 on host {socket.gethostname()} to memory node 1 on host 127.0.0.1 cannot",
            str(error),
        )
        assert "start all workers again" in str(error)
    made = [each.name for each in box.regions() if each.name.startswith(name)]
    assert not [each for each in made if ".topology" not in each]


DIES = """
import os, signal, sys
import numpy as np
import smbox
from smbox_torch.topology import choose, measure
from smbox_torch.world import World
smbox.join.__kwdefaults__["lease_s"] = 1.0
sizes = {"world_size": 2, "local_world_size": 1, "group_rank": 1, "group_world_size": 2}
world = World(1, 0, run_id=sys.argv[3], **sizes)
end = getattr(smbox.Region, sys.argv[4])
def die(region, *args, **more):
    if region.name.endswith(".probe"):
        os.kill(os.getpid(), signal.SIGKILL)
    return end(region, *args, **more)
setattr(smbox.Region, sys.argv[4], die)
with smbox.connect(sys.argv[1], transport="tcp", timeout_s=60.0) as box:
    measure(box, sys.argv[2], world=world)
"""


@pytest.mark.parametrize("verb", ["get", "put"])
def test_a_worker_that_dies_while_links_are_measured_is_named(
    preloaded, worlds, run_hosts, box, address, monkeypatch, verb: str
):
    monkeypatch.setitem(smbox.join.__kwdefaults__, "lease_s", 1.0)
    name, world = uuid.uuid4().hex, worlds(2, 1)[0]
    words = [preloaded, "-c", DIES, address, name, world.run_id, verb]
    with subprocess.Popen(words) as other:
        try:
            x = torch.nn.Parameter(torch.ones(3))
            sgd = torch.optim.SGD([x], lr=1.0)
            with pytest.raises(WorkerLostError, match="rank 1 died") as caught:
                HybridSGD(sgd, box, name, groups="auto", world=world, timeout_s=60.0)
            assert other.wait(60) == -signal.SIGKILL
        finally:
            other.kill()
    assert caught.value.facts["rank"] == 1
    assert bool((x == 1.0).all())
    made = [each.name for each in box.regions() if each.name.startswith(name)]
    assert not [each for each in made if "probe" in each or ".topology" not in each]

    def start_again(world: World, box):
        return measure(box, name, world=dataclasses.replace(world, restart=1), timeout_s=60.0)

    first, second = run_hosts(2, 1, start_again)
    assert first == second


@pytest.mark.parametrize("hosts", [1, 7])
def test_one_worker_and_seven_choose_alike(run_hosts, hosts: int):
    name = uuid.uuid4().hex

    def work(world: World, box) -> str:
        return str(choose(measure(box, name, world=world), nbytes=1000))

    assert len(set(run_hosts(hosts, 1, work))) == 1


def test_a_worker_that_never_comes_is_named(run_hosts):
    name = uuid.uuid4().hex

    def work(world: World, box) -> str:
        if world.rank == 1:
            return ""
        with pytest.raises(RequestTimeoutError) as caught:
            measure(box, name, world=world, timeout_s=1.0)
        return str(caught.value)

    assert "rank [1] did not come" in run_hosts(2, 1, work)[0]


def test_a_box_that_measures_nothing_and_words_that_mean_nothing_are_refused():
    for box, groups, wanted in (
        (ModelBox(), "auto", "every rank"),
        (None, "auto", "every rank"),
    ):
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
        with pytest.raises(ConfigError, match=wanted):
            HybridSGD(sgd, box, "run", groups=groups, world=World())


def test_another_word_than_auto_is_refused(box):
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
    with pytest.raises(ConfigError, match='"auto"'):
        HybridSGD(sgd, box, "run", groups="automatic", world=World())


RUN = ("-c", "from smbox.cli.main import main; main()", "run")
TRAIN = """
import torch
import smbox
from smbox_torch import HybridSGD
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
with smbox.connect(timeout_s=60.0) as box:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = HybridSGD(sgd, box, "m", groups="auto", period=2, model=model)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    optimizer.finish(timeout_s=60.0)
    topology = optimizer.topology
    sums = f"{float(model.weight.detach().double().sum()):.5f}"
    print("chosen", [group.ranks for group in topology.groups], topology.center, sums)
"""


@pytest.mark.parametrize(
    ("hosts", "each", "nodes", "groups"),
    [(1, 2, 1, "[(0, 1)]"), (2, 2, 2, "[(0, 1), (2, 3)]"), (3, 1, 3, None)],
)
def test_a_script_trains_in_the_groups_that_all_its_workers_have_chosen(
    preloaded: str, tmp_path, hosts: int, each: int, nodes: int, groups: str | None
):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    places = ["--nodes", str(hosts), "--per-node", str(each), "--memory-nodes", str(nodes)]
    done = subprocess.run(
        [preloaded, *RUN, *places, "--memory", "64MiB", preloaded, str(path)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = {
        line[line.index("chosen") :] for line in done.stdout.splitlines() if "chosen" in line
    }
    assert len(told) == 1, done.stdout  # the same groups, center and parameters on all
    assert done.stdout.count("chosen") == hosts * each
    if groups is not None:  # of three hosts on one machine anything may be nearest
        assert groups in told.pop()
