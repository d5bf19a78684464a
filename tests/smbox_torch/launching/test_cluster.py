from __future__ import annotations

import pytest

from smbox.errors import ConfigError
from smbox_torch.launching.cluster import (
    RESTARTS,
    OnFailure,
    Plan,
    Run,
    ranked,
    worker_env,
)
from smbox_torch.launching.local_host import free_port
from smbox_torch.world import World

RUN = Run("r", "tcp://127.0.0.1:7070", 1)
TORCHRUN = {
    "RANK": "7",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "10.0.0.1",
    "TORCHELASTIC_RUN_ID": "other",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def told_of(place: dict[str, object]) -> dict[str, str]:
    return {f"SMBOX_{name}": str(value) for name, value in place.items()}


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


def test_places_are_computed_once():
    plan = Plan(["x"], nodes=2, per_node=3)
    assert plan.places is plan.places


def test_a_restart_is_another_gathering():
    plan = Plan(["x"], on_failure=OnFailure.RESTART_ALL)
    assert worlds(plan)[0].host_token != worlds(plan, restart=1)[0].host_token


@pytest.mark.parametrize(("nodes", "transport"), [(1, None), (2, "tcp")])
def test_nodes_reach_the_memory_over_tcp(nodes: int, transport: str | None):
    env = worker_env(Plan(["x"], nodes=nodes), {"HOME": "/h"}, 0, run=RUN)
    assert env.get("SMBOX_TRANSPORT") == transport
    assert env["HOME"] == "/h"


def test_threads_are_shared_out_unless_told():
    for plan in (Plan(["x"], per_node=1000), Plan(["x"], nodes=1000)):
        assert worker_env(plan, {}, 0, run=RUN)["OMP_NUM_THREADS"] == "1"
    told = worker_env(plan, {"OMP_NUM_THREADS": "7"}, 0, run=RUN)
    assert told["OMP_NUM_THREADS"] == "7"


def test_one_worker_alone_that_starts_again_meets_the_others_where_they_are():
    plan = Plan(["x"], per_node=2, on_failure=OnFailure.RESTART)
    env = worker_env(plan, {}, 1, run=RUN, worker_restart=2)
    again = World.from_env(env)
    assert (again.restart, again.worker_restart) == (0, 2)
    assert again.host_token == worlds(plan)[1].host_token


@pytest.mark.parametrize("inherited", [{}, TORCHRUN])
def test_torchruns_variables_are_not_there_unless_asked_for(inherited):
    env = worker_env(Plan(["x"], nodes=2), inherited, 1, run=RUN)
    assert {name: env[name] for name in env if not name.startswith("SMBOX_")}.keys() == {
        "OMP_NUM_THREADS",
        "PYTHONUNBUFFERED",
    }
    plan = Plan(["x"], nodes=2, torchrun_env=True, on_failure=OnFailure.RESTART_ALL)
    asked = worker_env(plan, inherited, 1, run=RUN, restart=2)
    named = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [asked[name] for name in named] == ["1", "0", "2", "127.0.0.1", "1"]
    assert asked["TORCHELASTIC_RUN_ID"] == "r"
    assert asked["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert asked["TORCHELASTIC_MAX_RESTARTS"] == str(RESTARTS)
    assert "TORCHELASTIC_USE_AGENT_STORE" not in asked
    own = {name: value for name, value in asked.items() if name.startswith("SMBOX_")}
    asked_for = {name: value for name, value in asked.items() if name not in own}
    ours, theirs = World.from_env(own), World.from_env(asked_for)
    assert (ours.rank, ours.groups, ours.master_port) == (theirs.rank, theirs.groups, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"per_node": 0},
        {"nodes": 101, "per_node": 100},
        {"restarts": -1, "on_failure": OnFailure.RESTART},
        {"restarts": 1},
        {"restarts": 1, "on_failure": OnFailure.CONTINUE},
        {"address": "10.0.0.1:7070"},
        {"address": "tcp://10.0.0.1"},
        {"address": "tcp://10.0.0.1:7070", "memory": "1GiB"},
        {"address": "tcp://10.0.0.1:7070", "memory_nodes": 2},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError):
        Plan(["x"], **wrong)


def test_restarts_have_a_default_where_something_starts_again():
    found = [Plan(["x"], on_failure=each).restarts_max for each in OnFailure]
    assert found == [0, 0, RESTARTS, RESTARTS]
    assert Plan(["x"], on_failure=OnFailure.RESTART, restarts=0).restarts_max == 0


def test_several_nodes_need_an_address_that_they_reach():
    Plan(["x"], nodes=1, address="ipc:///tmp/box")
    Plan(["x"], nodes=2, address="tcp://10.0.0.1:7070")
    for address in ("ipc:///tmp/box", "tcp://10.0.0.1:7070,ipc:///tmp/box"):
        with pytest.raises(ConfigError, match="over tcp"):
            Plan(["x"], nodes=2, address=address)


def test_a_free_port_is_one():
    assert 0 < free_port() < 65536


@pytest.mark.parametrize("address", [None, "tcp://10.0.0.1:7070"])
def test_only_a_node_that_was_there_before_is_shown_a_key(address: str | None):
    env = worker_env(Plan(["x"], address=address), {"SMBOX_KEY": "a.key"}, 0, run=RUN)
    assert ("SMBOX_KEY" in env) == (address is not None)


def test_ranks_of_a_scheduler_are_consecutive_on_each_host():
    assert [index for index, _ in ranked("baab")] == [0, 3, 1, 2]
    found = [World.from_env(told_of(place)) for _, place in ranked("baab")]
    assert [world.rank for world in found] == [0, 1, 2, 3]
    assert [world.local_rank for world in found] == [0, 1, 0, 1]
    assert [world.group_rank for world in found] == [0, 0, 1, 1]
    assert {world.world_size for world in found} == {4}
    assert {world.groups for world in found} == {2}
    assert [place["LOCAL_RANK"] for _, place in ranked("abb")] == [0, 0, 1]


def test_hosts_of_a_scheduler_may_differ_in_size():
    found = [World.from_env(told_of(place)) for _, place in ranked("aba")]
    assert [world.local_world_size for world in found] == [2, 2, 1]
    assert [world.rank_of(0) for world in found] == [0, 0, 2]
