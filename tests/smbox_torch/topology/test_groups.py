"""Groups that average at a memory node: the same training as in the memory of one host."""

from __future__ import annotations

import time
import uuid

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, RequestTimeoutError, WorkerLostError
from smbox.testing import oracles
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.averaging.box_group import BoxGroup
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.hybrid import groups
from smbox_torch.hybrid.broadcast import BoxBroadcast
from smbox_torch.hybrid.groups import Run, find_placement
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.hybrid.roles import ExchangeSettings
from smbox_torch.model.flat import FlatParameters
from smbox_torch.topology import Link, Links, Topology, choose
from smbox_torch.topology.measuring import boxes_of
from smbox_torch.world import World

pytestmark = [pytest.mark.timeout(200), pytest.mark.shares]
RATE, PERIOD, STEPS = 0.3, 2, 8
NEAR, FAR = Link(1e-4, 2e8, 2e8), Link(1e-4, 1e7, 1e7)


def islands(*nodes: int, far: int = 1) -> Topology:
    """Worker w is near to node ``nodes[w]`` alone; each is a host; node 1 has the id far."""
    rows = tuple(tuple(NEAR if node == near else FAR for node in (0, 1)) for near in nodes)
    links = Links(rows, (0, far), tuple(range(len(nodes))))
    return choose(links, nbytes=1 << 20, period=PERIOD)


ONE = islands(0, 0, 1)
"""Workers 0 and 1 at node 0, and worker 2 alone."""


def mean_gradient(x: np.ndarray, t: int) -> np.ndarray:
    return (gradient(0)(x, t) + gradient(1)(x, t)) / np.float32(2)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_group_over_two_hosts_trains_as_its_oracle(run_hosts, overlap: bool):
    assert [group.ranks for group in ONE.groups] == [(0, 1), (2,)]
    assert ONE.groups[0].node == 0
    name = uuid.uuid4().hex

    def work(world: World, box):
        if world.rank == 2:  # its group is no part of this test
            return None
        x = torch.nn.Parameter(torch.from_numpy(start() + np.float32(world.rank)))
        optimizer = HybridSGD(
            torch.optim.SGD([x], lr=LR),
            box,
            name,
            groups=ONE,
            world=world,
            moving_rate=RATE,
            period=PERIOD,
            overlap=overlap,
            timeout_s=60.0,
        )
        one = Descent(world.rank, x, optimizer)
        one.run(STEPS)
        optimizer.close()
        stats = optimizer.stats()
        return one.values(), boxes_of(box)[ONE.center].attach(f"{name}.float32").get(), stats

    (first, center, root), (second, _, member), _ = run_hosts(3, 1, work)
    assert first.tobytes() == second.tobytes()
    assert root.exchanges == member.exchanges == STEPS // PERIOD + 1
    assert root.nbytes > 0 == member.nbytes
    x, c = start(), start()
    settings = {"steps": STEPS, "lr": LR, "moving_rate": RATE, "period": PERIOD}
    steps = oracles.easgd(x, c, mean_gradient, **settings)
    oracles.run(oracles.shared(steps, x, c, moving_rate=RATE))
    np.testing.assert_allclose(first, x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(center, c, rtol=0, atol=1e-5)


@pytest.mark.parametrize("exchange", ["elastic", "seasgd"])
def test_two_groups_end_at_the_center_with_their_statistics(run_hosts, exchange: str):
    topology = islands(0, 0, 1, 1)
    assert [group.node for group in topology.groups] == [0, 1]
    name = uuid.uuid4().hex

    def work(world: World, box):
        torch.manual_seed(world.rank)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"groups": topology, "world": world, "period": 2, "model": model}
        options["exchange"] = exchange
        optimizer = HybridSGD(sgd, box, name, timeout_s=60.0, **options)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        optimizer.finish(timeout_s=60.0)
        return {key: value.double() for key, value in model.state_dict().items()}

    first, *others = run_hosts(4, 1, work)
    for state in others:
        for key, value in state.items():
            torch.testing.assert_close(value, first[key], rtol=0, atol=1e-5)


def test_a_start_finds_the_center_where_an_earlier_one_chose_to_keep_it(run_hosts, monkeypatch):
    """Also if its own measurements make another node the best one."""
    name = uuid.uuid4().hex

    def work(world: World, box) -> tuple[int, np.ndarray, np.ndarray]:
        x = torch.nn.Parameter(torch.from_numpy(start()))
        sgd = torch.optim.SGD([x], lr=LR)
        options = {"groups": "auto", "world": world, "timeout_s": 60.0}
        one = Descent(world.rank, x, HybridSGD(sgd, box, name, **options))
        begun = one.values()
        one.run(STEPS)
        one.optimizer.finish(timeout_s=60.0)
        return one.optimizer.topology.center, begun, one.values()

    expected = start()
    for near in (0, 1):
        links = islands(near, near).links
        monkeypatch.setattr(groups, "measure", lambda *_, links=links, **__: links)
        found = run_hosts(2, 1, work)
        assert [center for center, _, _ in found] == [0, 0]
        # The other one may begin after the first has trained.
        assert any(np.allclose(begun, expected, rtol=0, atol=1e-6) for _, begun, _ in found)
        expected = found[0][2]


def test_the_default_rate_counts_the_groups_and_not_the_hosts(run_hosts):
    name = uuid.uuid4().hex

    def work(world: World, box):
        if world.rank == 2:  # it is expected, and counts
            return None
        x = torch.nn.Parameter(torch.ones(3))
        options = {"groups": ONE, "world": world, "period": 1, "timeout_s": 60.0}
        optimizer = HybridSGD(torch.optim.SGD([x], lr=1.0), box, name, **options)
        for _ in range(2):
            x.grad = torch.ones(3)
            optimizer.step()
        optimizer.close(exchange=False)
        return boxes_of(box)[ONE.center].attach(f"{name}.float32").get()

    for center in run_hosts(3, 1, work)[:2]:
        np.testing.assert_allclose(center, 1 - 0.9 / 2, rtol=1e-6)


def group_of(world: World, box, name: str, timeout_s: float = 60.0) -> BoxGroup:
    at = boxes_of(box)[1]
    return BoxGroup(at, name, range(world.world_size), world.rank, timeout_s=timeout_s)


def test_a_worker_that_is_started_again_alone_ends_the_others_at_once(run_hosts, monkeypatch):
    """All begin again."""
    for key, value in ("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "one"):
        monkeypatch.setenv(key, value)
    name = uuid.uuid4().hex

    def train(world: World, box, steps: int) -> float:
        x = torch.nn.Parameter(torch.zeros(1))
        group = group_of(world, box, name)
        optimizer = SyncGroup(torch.optim.SGD([x], lr=1.0), world=world, group=group)
        try:
            for _ in range(steps):
                x.grad = torch.full((1,), float(world.rank))
                optimizer.step()
        finally:
            group._team.leave()  # as a process that ends
        return x.item()

    def work(world: World, box) -> float:
        if world.rank:
            train(world, box, 2)
        else:
            began_s = time.monotonic()
            with pytest.raises(WorkerLostError, match=r"rank 1 (died or )?left"):
                train(world, box, 3)
            assert time.monotonic() - began_s < 30.0
        return train(world, box, 2)

    assert run_hosts(2, 1, work) == [-1.0, -1.0]


def test_a_sync_group_of_a_node_begins_alike_and_steps_with_the_mean(run_hosts):
    name = uuid.uuid4().hex

    def work(world: World, box):
        x = torch.nn.Parameter(torch.full((4,), float(world.rank)))
        sgd = torch.optim.SGD([x], lr=1.0)
        with SyncGroup(sgd, world=world, group=group_of(world, box, name)) as optimizer:
            values = [x.detach().clone()]
            for step in range(3):
                x.grad = torch.full((4,), float(world.rank + step))
                optimizer.step()
                values.append(x.detach().clone())
        return torch.stack(values)

    for found in run_hosts(3, 1, work):
        torch.testing.assert_close(found[:, 0], torch.tensor([0.0, -1.0, -3.0, -6.0]))


def test_models_that_differ_are_refused_on_all_workers(run_hosts):
    name = uuid.uuid4().hex

    def work(world: World, box) -> str:
        x = torch.nn.Parameter(torch.zeros(3 + world.rank))
        group = group_of(world, box, name)
        with pytest.raises(ConfigError, match="models differ") as caught:
            SyncGroup(torch.optim.SGD([x], lr=1.0), world=world, group=group)
        return str(caught.value)

    assert len(run_hosts(2, 1, work)) == 2


def test_a_worker_that_does_not_come_is_named_by_its_rank_in_the_run(run_hosts):
    name, ranks = uuid.uuid4().hex, (2, 0)

    def work(world: World, box) -> str:
        if world.rank not in ranks:
            return ""
        x = torch.nn.Parameter(torch.zeros(3))
        group = BoxGroup(boxes_of(box)[0], name, ranks, world.rank, timeout_s=2.0)
        optimizer = SyncGroup(torch.optim.SGD([x], lr=1.0), world=world, group=group)
        for _ in range(2):
            x.grad = torch.ones(3)
            optimizer.step()
        if world.rank == 2:
            return ""
        with pytest.raises(RequestTimeoutError) as caught:
            optimizer.step()
        return str(caught.value)

    assert "rank [2] did not come" in run_hosts(3, 1, work)[0]


def test_a_node_broadcasts_one_move_after_the_other(run_hosts):
    def work(world: World, box) -> list[float]:
        x = [torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(torch.zeros(2).double())]
        group = group_of(world, box, "moves")
        group.begin_alike(x)
        moves = BoxBroadcast(group, "move", FlatParameters(x).buffers)
        heard = []
        for number in range(6):
            for tensor in moves.tensors:
                tensor.fill_(number if world.rank == 0 else -1.0)
            moves.receive()
            heard.append(float(sum(tensor.sum() for tensor in moves.tensors)))
        return heard

    assert run_hosts(3, 1, work) == [[7.0 * number for number in range(6)]] * 3


def test_a_rank_outside_and_a_topology_of_another_run_are_refused(box):
    with pytest.raises(ConfigError, match="not in the group"):
        BoxGroup(box, "g", (0, 1), 2, timeout_s=1.0)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=1.0)
    with pytest.raises(ConfigError, match="another run"):
        HybridSGD(sgd, box, "run", groups=ONE, world=World(world_size=2, local_world_size=1))
    elsewhere = choose(Links(((FAR,),), (9,), (0,)), nbytes=1)
    with pytest.raises(ConfigError, match="another run"):
        HybridSGD(sgd, box, "run", groups=elsewhere, world=World())
    with pytest.raises(ConfigError, match="another run"):
        HybridSGD(sgd, box, "run", groups=islands(0, 0, 1, 1, far=9), world=World(0, 0, 4, 1))
    world = World(2, 1, 3, 2)
    with pytest.raises(ConfigError, match="all workers of one host"):
        HybridSGD(sgd, box, "run", groups=ONE, world=world, timeout_s=1.0)


def test_a_topology_places_each_rank(box, monkeypatch):
    settings = ExchangeSettings("elastic", PERIOD, None, overlap=False, increment=None)
    runs = [Run("run", World(rank, 0, 3, 1), settings, 0.05, 1 << 20) for rank in range(3)]
    places = [find_placement(run, ONE, box, None, []) for run in runs]
    assert [(at.index, at.groups, at.is_root) for at in places] == [
        (0, 2, True),
        (0, 2, False),
        (1, 2, True),
    ]
    with pytest.raises(RequestTimeoutError) as caught:
        places[0].group.begin_alike([])  # alone
    assert caught.value.facts["timeout_s"] == 0.05
    assert places[2].group is None
    monkeypatch.setattr(groups, "measure", lambda *_, **__: ONE.links)
    chosen = find_placement(runs[0], "auto", box, None, [torch.zeros(5), torch.zeros(2, 3)])
    assert (chosen.topology.nbytes, chosen.topology.period) == (4 * 11, PERIOD)
