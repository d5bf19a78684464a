"""Processes of one host that run out of batches, or end, at different times."""

from __future__ import annotations

import os
import subprocess
import uuid

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch import SyncGroup
from smbox_torch.workers.sampling import distributed_sampler
from smbox_torch.world import World

LONG_S = 60.0

PROCESS = """
import os, sys, torch
from smbox.errors import SmboxError
from smbox_torch.averaging.sync_group import SyncGroup
torch.set_num_threads(1)
rank, way = int(os.environ["RANK"]), sys.argv[1]
weight = torch.nn.Parameter(torch.ones(20))
group = SyncGroup(torch.optim.SGD([weight], lr=0.1), timeout_s=600)

def train(steps):
    for number in range(steps):
        group.zero_grad()
        weight.square().sum().backward()
        group.step()
    if rank == 1 and way == "error":
        raise KeyError("of rank 1")
    if rank == 1 and way == "with":
        group.close()

try:
    train(3 if rank == 1 else 5)
except SmboxError as error:
    print(type(error).__name__, error, flush=True)
"""


def run(python: str, way: str) -> list[str]:
    """What the two ranks print."""
    env = os.environ | {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}
    children = [
        subprocess.Popen(
            [python, "-c", PROCESS, way],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [child.communicate(timeout=LONG_S)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.parametrize("way", ["end", "with"])
def test_a_rank_that_finished_has_not_died(preloaded: str, way: str):
    told, nothing = run(preloaded, way)
    assert nothing == ""
    assert told.startswith("StepMismatchError rank 1 finished after 3 steps")
    assert "join()" in told
    assert "distributed_sampler" in told


def test_a_rank_that_an_error_ended_has_not_finished(preloaded: str):
    told, _ = run(preloaded, "error")
    assert told.startswith("WorkerLostError rank 1 has left"), told


def test_ranks_whose_inner_loops_end_at_different_steps_learn_it(run_ranks):
    """As by an early stop of PPO, before the learning rate of the next update."""

    def train(world: World, group: SyncGroup, weight: torch.Tensor) -> None:
        for update in range(2):
            group.param_groups[0]["lr"] = 0.1 / (1 + update)
            for _ in range(1 + world.rank):
                group.zero_grad()
                (weight.square().sum() * (1 + world.rank)).backward()
                group.step()

    def work(world: World) -> None:
        weight = torch.nn.Parameter(torch.ones(20))
        group = SyncGroup(torch.optim.SGD([weight]), world=world, timeout_s=LONG_S)
        with pytest.raises(ConfigError, match="no rank end an inner loop earlier"):
            train(world, group, weight)
        group.close()

    run_ranks(2, work)


@pytest.mark.parametrize("size", [10, 12, 13])
def test_a_sampler_gives_all_workers_of_a_world_equally_many_items(size: int):
    data = torch.utils.data.TensorDataset(torch.arange(size))
    worlds = [World(rank, rank, world_size=4, local_world_size=4) for rank in range(4)]
    shares = [list(distributed_sampler(data, world=world)) for world in worlds]
    assert len({len(share) for share in shares}) == 1
    assert set().union(*shares) == set(range(size))
    again = [list(distributed_sampler(data, world=w, shuffle=False)) for w in worlds]
    assert [share[0] for share in again] == [0, 1, 2, 3]
