from __future__ import annotations

import pytest
import torch

import smbox_torch
from smbox.errors import ConfigError
from smbox_torch.world import World

pytestmark = pytest.mark.shares

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "SMBOX_ADDRESS": "tcp://127.0.0.1:7070",
}


def test_reads_what_torchrun_sets():
    world = World.from_env(TORCHRUN)
    assert (world.rank, world.local_rank) == (3, 1)
    assert (world.world_size, world.local_world_size) == (4, 2)
    assert (world.group_rank, world.restart) == (1, 2)
    assert world.group_world_size == 2
    assert world.address == "tcp://127.0.0.1:7070"
    assert world.launch == ""
    assert World.from_env(TORCHRUN | {"TORCHELASTIC_RUN_ID": "job 7"}).launch == "job 7"
    assert not world.is_group_root
    assert [world.rank_of(local) for local in range(2)] == [2, 3]


OWN = {
    "SMBOX_RANK": "5",
    "SMBOX_LOCAL_RANK": "2",
    "SMBOX_WORLD_SIZE": "6",
    "SMBOX_LOCAL_WORLD_SIZE": "3",
    "SMBOX_GROUP_RANK": "1",
    "SMBOX_GROUP_WORLD_SIZE": "2",
    "SMBOX_RUN_ID": "own",
    "SMBOX_RESTART_COUNT": "0",
    "SMBOX_WORKER_RESTART_COUNT": "4",
    "SMBOX_MASTER_ADDR": "127.0.0.2",
    "SMBOX_MASTER_PORT": "7",
}


def test_reads_what_smbox_run_sets():
    world = World.from_env(OWN)
    assert (world.rank, world.local_rank, world.group_rank) == (5, 2, 1)
    assert (world.world_size, world.local_world_size, world.groups) == (6, 3, 2)
    assert (world.restart, world.worker_restart) == (0, 4)
    assert world.launch == World.from_env(OWN | {"SMBOX_ADDRESS": "tcp://b:1"}).launch == "own"
    assert (world.master_addr, world.master_port) == ("127.0.0.2", 7)


@pytest.mark.parametrize("left_out", [name for name in OWN if name != "SMBOX_RANK"])
def test_the_two_families_are_never_mixed(left_out: str):
    own = {name: value for name, value in OWN.items() if name != left_out}
    own |= {"SMBOX_LOCAL_RANK": "0", "SMBOX_LOCAL_WORLD_SIZE": "1", "SMBOX_WORLD_SIZE": "6"}
    theirs = {name: value for name, value in TORCHRUN.items() if name != "SMBOX_ADDRESS"}
    agreeing = theirs | {"RANK": "5", "WORLD_SIZE": "6"}
    assert World.from_env(agreeing | own) == World.from_env(own)
    without_rank = {name: value for name, value in own.items() if name != "SMBOX_RANK"}
    assert World.from_env(without_rank | theirs) == World.from_env(theirs)


@pytest.mark.parametrize(("name", "value"), [("RANK", "2"), ("WORLD_SIZE", "8")])
def test_torchrun_inside_of_smbox_run_decides(name: str, value: str):
    told = {"SMBOX_RANK": "3", "SMBOX_WORLD_SIZE": "4", "SMBOX_LOCAL_RANK": "0"}
    outer = OWN | told | {"SMBOX_ADDRESS": TORCHRUN["SMBOX_ADDRESS"]}
    assert World.from_env(TORCHRUN | outer) == World.from_env(outer)
    outer[f"SMBOX_{name}"] = value
    assert World.from_env(TORCHRUN | outer) == World.from_env(TORCHRUN)
    incomplete = {key: found for key, found in TORCHRUN.items() if key != name}
    assert World.from_env(incomplete | outer) == World.from_env(outer)


def test_an_empty_rank_is_none():
    assert World.from_env(TORCHRUN | OWN | {"SMBOX_RANK": ""}) == World.from_env(TORCHRUN)


def test_the_number_of_hosts_is_told_or_derived_or_unknown():
    assert World(world_size=5, local_world_size=2, group_world_size=3).groups == 3
    assert World(world_size=6, local_world_size=2).groups == 3
    assert World(world_size=5, local_world_size=2).groups is None
    assert World().groups == 1


def test_no_variables_is_a_run_of_one():
    world = World.from_env({})
    assert (world.rank, world.world_size, world.local_world_size) == (0, 1, 1)
    assert world.address is None
    assert world.is_group_root


def test_all_workers_share_the_host_unless_told_otherwise():
    world = World.from_env({"RANK": "2", "WORLD_SIZE": "3"})
    assert (world.local_rank, world.local_world_size) == (2, 3)


def test_the_host_token_is_shared_by_one_host_of_one_start_of_one_run():
    token = World.from_env(TORCHRUN).host_token
    assert World.from_env(TORCHRUN | {"RANK": "2", "LOCAL_RANK": "0"}).host_token == token
    for other in ("GROUP_RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"):
        assert (
            World.from_env(TORCHRUN | {"GROUP_WORLD_SIZE": "8", other: "7"}).host_token != token
        )
    assert World.from_env(TORCHRUN | {"TORCHELASTIC_RUN_ID": "b"}).host_token != token


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "4"),
        ("RANK", "-1"),
        ("RANK", "one"),
        ("LOCAL_RANK", "2"),
        ("LOCAL_WORLD_SIZE", "9"),
        ("LOCAL_WORLD_SIZE", "0"),
        ("GROUP_RANK", "-1"),
        ("GROUP_WORLD_SIZE", "1"),
        ("MASTER_PORT", "x"),
        ("TORCHELASTIC_RESTART_COUNT", "-1"),
    ],
)
def test_a_contradiction_is_an_error_that_shows_the_value(name: str, value: str):
    with pytest.raises(ConfigError, match=value):
        World.from_env(TORCHRUN | {name: value})


@pytest.mark.parametrize("kind", ["HybridSGD", "SyncGroup", "RingAllReduce", "HogwildPP"])
def test_without_a_launcher_nobody_takes_itself_for_the_only_worker(
    node, run, worlds, monkeypatch, kind
):
    for name in ("RANK", "SMBOX_RANK"):
        monkeypatch.delenv(name, raising=False)
    sgd = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    place = () if kind in {"SyncGroup", "RingAllReduce"} else (node, run)
    options = {"clusters": 1} if kind == "HogwildPP" else {}
    before = node.regions()
    with pytest.raises(
        ConfigError, match=r"smbox run, torchrun.*world=World\(\) for a single worker"
    ):
        getattr(smbox_torch, kind)(sgd, *place, **options)
    assert node.regions() == before
    getattr(smbox_torch, kind)(sgd, *place, **options, world=worlds(1, 1)[0]).close()


def test_numbers_that_contradict_each_other_are_refused():
    for more in ({"world_size": 2, "local_world_size": 3}, {"worker_restart": -1}):
        with pytest.raises(ConfigError):
            World(**more)
    assert World(group_rank=5).group_rank == 5  # the number of hosts is unknown


def test_runs_at_other_addresses_and_of_other_sizes_are_told_apart():
    one, other = (World.from_env({"SMBOX_ADDRESS": f"tcp://host:{port}"}) for port in (1, 2))
    assert one.run_id != other.run_id
    small, large = (World(world_size=2, local_world_size=size) for size in (1, 2))
    assert small.host_token != large.host_token
