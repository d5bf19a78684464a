from __future__ import annotations

import pytest

from smbox.errors import ConfigError
from smbox_torch.world import World

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
    assert not world.is_group_root
    assert [world.rank_of(local) for local in range(2)] == [2, 3]


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
        assert World.from_env(TORCHRUN | {other: "7"}).host_token != token
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
        ("TORCHELASTIC_RESTART_COUNT", "-1"),
    ],
)
def test_a_contradiction_is_an_error_that_shows_the_value(name: str, value: str):
    with pytest.raises(ConfigError, match=value):
        World.from_env(TORCHRUN | {name: value})
