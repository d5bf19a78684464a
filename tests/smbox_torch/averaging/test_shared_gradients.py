"""What may happen to a process or a gradient of SyncGroup beside the averaging itself."""

from __future__ import annotations

import os

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.averaging.mean import GradientViews
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.world import World


@pytest.fixture
def only_rank(worlds) -> tuple[torch.nn.Sequential, SyncGroup]:
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    return net, SyncGroup(torch.optim.SGD(net.parameters(), lr=0.1), net, world=worlds(1, 1)[0])


def test_a_forked_child_is_not_the_rank_of_its_parent(only_rank, monkeypatch):
    net, group = only_rank
    with group:
        net(torch.randn(4, 6)).sum().backward()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ConfigError, match="forked child"):
                group.step()
            with pytest.raises(ConfigError, match="forked child"):
                net(torch.randn(4, 6)).sum().backward()
        group.step()


def test_gradients_that_torch_moved_out_of_the_shared_memory_are_noticed(only_rank):
    net, group = only_rank
    with group:
        net(torch.randn(4, 6)).sum().backward()
        net[0].weight.grad.share_memory_()
        group.step()
        group.zero_grad()
        with pytest.raises(ConfigError, match="not in the memory of the ranks"):
            net(torch.randn(4, 6)).sum().backward()


@pytest.mark.filterwarnings("ignore:Using backward")  # torch's, of create_graph
def test_no_graph_grows_in_the_shared_gradients(worlds):
    net = torch.nn.Linear(6, 5)
    net.weight.data = net.weight.data.t().contiguous().t()  # its gradient is not shared
    group = SyncGroup(torch.optim.SGD(net.parameters(), lr=0.1), net, world=worlds(1, 1)[0])
    with group:
        for _ in range(2):
            group.zero_grad()
            net(torch.randn(4, 6)).square().sum().backward(create_graph=True)
            assert all(each.grad.grad_fn is None for each in net.parameters())
            group.step()


def test_a_gradient_has_the_strides_of_its_parameter(worlds):
    """torch's fused optimizers on the CPU pair elements by their place in memory."""
    trained = []
    for wrap in (lambda sgd: sgd, lambda sgd: SyncGroup(sgd, world=worlds(1, 1)[0])):
        weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t())
        optimizer = wrap(torch.optim.SGD([weight], lr=0.1, fused=True))
        for _ in range(2):
            optimizer.zero_grad()
            (weight * torch.arange(6.0).view(3, 2)).sum().backward()
            optimizer.step()
        assert weight.grad.stride() == weight.stride() == (1, 3)
        trained.append(weight.detach())
    assert torch.equal(*trained)


def test_so_does_a_gradient_that_only_others_had():
    weight = torch.nn.Parameter(torch.zeros(2, 3).t())
    GradientViews([weight], [torch.arange(6.0).view(3, 2)]).hand_out([True])
    assert weight.grad.stride() == (1, 3)
    assert weight.grad.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_ranks_of_another_host_are_named_by_their_rank_in_the_run(worlds, each):
    def work(world: World) -> list[int]:
        net = torch.nn.Linear(6, 5)
        with SyncGroup(torch.optim.SGD(net.parameters()), world=world, timeout_s=20.0):
            with torch.no_grad():
                net.weight.fill_(world.local_rank)
            with pytest.raises(ConfigError) as caught:
                net(torch.ones(4, 6)).sum().backward()
        return caught.value.facts["ranks"]

    assert each(worlds(2, 2)[2:], work) == [[3], [3]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_model_that_was_converted_after_wrapping_is_noticed(only_rank, dtype: torch.dtype):
    """Its gradients were in the shared memory then, and torch converts them, too."""
    net, group = only_rank
    with group:
        net(torch.randn(4, 6)).sum().backward()
        group.step()
        net.to(dtype)
        group.zero_grad()
        with pytest.raises(ConfigError, match="was converted or replaced"):
            net(torch.randn(4, 6, dtype=dtype)).sum().backward()
