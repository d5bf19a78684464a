"""States that are saved and loaded, blocks without averaging, and blocks that an error ends."""

from __future__ import annotations

import pytest
import torch

from smbox.errors import ConfigError, WorkerLostError
from smbox_torch import SyncGroup
from smbox_torch.world import World


def wrapped(net: torch.nn.Module, world: World, **options) -> SyncGroup:
    sgd = torch.optim.SGD(net.parameters(), lr=0.5)
    return SyncGroup(sgd, world=world, **options)


def step(optimizer: SyncGroup, net: torch.nn.Module) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def test_a_state_stays_as_it_was_saved_and_is_loaded_before_the_first_step(worlds):
    net, other = (torch.nn.Linear(3, 1, bias=False) for _ in range(2))
    with wrapped(net, worlds(1, 1)[0]) as optimizer, wrapped(other, worlds(1, 1)[0]) as resumed:
        saved, before = optimizer.state_dict(), net.weight.tolist()
        step(optimizer, net)
        resumed.load_state_dict(saved)
        assert other.weight.tolist() == before != net.weight.tolist()
        step(resumed, other)
        assert torch.equal(other.weight, net.weight)


def test_a_state_without_buffers_leaves_those_of_the_model(worlds):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    with wrapped(net, worlds(1, 1)[0]) as optimizer:
        saved = optimizer.state_dict()
    net[0].running_mean.fill_(2.0)
    with wrapped(net, worlds(1, 1)[0], model=net) as optimizer:
        optimizer.load_state_dict(saved)
    assert net[0].running_mean.tolist() == [2.0] * 3


def test_a_state_with_buffers_is_not_loaded_without_them(worlds):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    with wrapped(net, worlds(1, 1)[0], model=net) as optimizer:
        step(optimizer, net)
        saved = optimizer.state_dict()
    with wrapped(net, worlds(1, 1)[0]) as optimizer:
        with pytest.raises(ConfigError, match="model="):
            optimizer.load_state_dict(saved)
        assert optimizer.steps == 0


def test_a_block_without_averaging_may_contain_another(worlds):
    net = torch.nn.Linear(3, 1)
    with wrapped(net, worlds(1, 1)[0]) as optimizer:
        with optimizer.no_sync():
            with optimizer.no_sync():
                pass
            net(torch.ones(2, 3)).sum().backward()
        assert optimizer.stats().exchanges == 0


def test_a_rank_whose_block_an_error_ended_is_lost_and_has_not_finished(run_ranks):
    def train(world: World) -> None:
        net = torch.nn.Linear(3, 1)
        with wrapped(net, world) as optimizer:
            step(optimizer, net)
            if world.rank == 1:
                raise KeyError("of the loop")
            step(optimizer, net)

    def work(world: World) -> None:
        with pytest.raises(KeyError if world.rank else WorkerLostError):
            train(world)

    run_ranks(2, work)
