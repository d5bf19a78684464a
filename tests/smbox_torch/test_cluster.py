from __future__ import annotations

import pytest

from smbox.errors import ConfigError
from smbox_torch.cluster import Plan, free_port, worker_env
from smbox_torch.world import World

RUN = {
    "TORCHELASTIC_RUN_ID": "r",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
    "SMBOX_ADDRESS": "tcp://127.0.0.1:7070",
}


def worlds(plan: Plan, restart: int = 0) -> list[World]:
    return [
        World.from_env(worker_env(plan, {}, rank, run=RUN, restart=restart))
        for rank in range(plan.workers)
    ]


def test_workers_find_their_places():
    found = worlds(Plan(["x"], nodes=2, per_node=3))
    assert [world.rank for world in found] == list(range(6))
    assert [(world.group_rank, world.local_rank) for world in found] == [
        (node, local) for node in range(2) for local in range(3)
    ]
    assert {world.address for world in found} == {"tcp://127.0.0.1:7070"}
    assert len({world.host_token for world in found}) == 2


def test_a_restart_is_another_gathering():
    plan = Plan(["x"], restarts=1)
    assert worlds(plan)[0].host_token != worlds(plan, restart=1)[0].host_token


@pytest.mark.parametrize(("nodes", "transport"), [(1, None), (2, "tcp")])
def test_nodes_reach_the_memory_over_tcp(nodes: int, transport: str | None):
    env = worker_env(Plan(["x"], nodes=nodes), {"HOME": "/h"}, 0, run=RUN, restart=0)
    assert env.get("SMBOX_TRANSPORT") == transport
    assert env["HOME"] == "/h"


def test_threads_are_shared_out_unless_told():
    plan = Plan(["x"], per_node=1000)
    assert worker_env(plan, {}, 0, run=RUN, restart=0)["OMP_NUM_THREADS"] == "1"
    told = worker_env(plan, {"OMP_NUM_THREADS": "7"}, 0, run=RUN, restart=0)
    assert told["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"per_node": 0}, {"restarts": -1}])
def test_no_workers_is_no_run(wrong):
    with pytest.raises(ConfigError):
        Plan(["x"], **wrong)


def test_several_nodes_need_an_address_that_they_reach():
    Plan(["x"], nodes=1, address="ipc:///tmp/box")
    Plan(["x"], nodes=2, address="tcp://10.0.0.1:7070")
    with pytest.raises(ConfigError, match="over tcp"):
        Plan(["x"], nodes=2, address="ipc:///tmp/box")


def test_a_free_port_is_one():
    assert 0 < free_port() < 65536
