"""What Hogwild and HogWild++ share of a model with batch norms, and what they refuse of one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from smbox.box import Box
from smbox.errors import ConfigError, LayoutMismatchError
from smbox_torch.hogwild.hogwild import Hogwild
from smbox_torch.hogwild.hogwild_pp import HogwildPP
from smbox_torch.world import World

BATCH = 8


def model(seed: int = 3, momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=momentum), nn.Tanh(), nn.Linear(5, 1)
    )


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05)


def train(net: nn.Module, optimizer: Any, steps: range) -> None:
    for t in steps:
        x = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(t))
        optimizer.zero_grad()
        (net(x) - x.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()


def values(net: nn.Module) -> list[list[float]]:
    return [tensor.flatten().tolist() for tensor in net.state_dict().values()]


def cluster(box: Box, net: nn.Module, rank: int, **options: Any) -> HogwildPP:
    world = World(rank, rank, 2, 2)
    options = {"tolerance": 0.0, "update_delay": 0} | options
    return HogwildPP(sgd(net), box, "run", clusters=2, model=net, world=world, **options)


def test_workers_in_turns_share_statistics_and_counts(open_box):
    nets = [model(seed) for seed in (3, 4)]
    workers = [Hogwild(sgd(net), open_box(), "run", model=net) for net in nets]
    alone = model()
    plain = sgd(alone)
    for t in range(6):
        train(nets[t % 2], workers[t % 2], range(t, t + 1))
        train(alone, plain, range(t, t + 1))
    assert values(nets[0]) == values(nets[1]) == values(alone)
    assert nets[1][1].num_batches_tracked.item() == 6
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("momentum", [0.1, None])  # None: weighs by the count
def test_statistics_of_workers_at_once_stay_in_range(open_box, momentum: float | None):
    nets = [model(momentum=momentum) for _ in range(3)]
    workers = [Hogwild(sgd(net), open_box(), "run", model=net) for net in nets]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(train, nets, workers, [range(i, 150, 3) for i in range(3)]))
    norm = nets[0][1]
    assert 1 <= norm.num_batches_tracked.item() <= 150
    assert (norm.running_var > 0).all()
    assert norm.running_mean.abs().max() < 10
    assert values(nets[0]) == values(nets[2])
    for worker in workers:
        worker.close()


def test_the_center_of_a_model_with_batch_norm_evaluates_as_the_shared_one(open_box):
    nets, other = [model(), model()], model(9)
    workers = [Hogwild(sgd(net), open_box(), "run", model=net) for net in nets]
    train(nets[0], workers[0], range(5))
    workers[1].center_into(other)
    assert values(other) == values(nets[0])
    x = torch.randn(20, 4)
    assert torch.equal(other.eval()(x), nets[0].eval()(x))
    with pytest.raises(ConfigError):
        workers[1].center_into(nn.Linear(4, 4))
    for worker in workers:
        worker.close()


def test_buffers_resume_and_whoever_leaves_keeps_a_copy(open_box):
    whole = model()
    with Hogwild(sgd(whole), open_box(), "first", model=whole) as optimizer:
        train(whole, optimizer, range(3))
        saved = optimizer.state_dict()
        train(whole, optimizer, range(3, 6))
    rest = model(9)
    with Hogwild(sgd(rest), open_box(), "second", model=rest) as optimizer:
        optimizer.load_state_dict(saved)
        train(rest, optimizer, range(3, 6))
    assert values(rest) == values(whole)
    later = model(1)
    with Hogwild(sgd(later), open_box(), "second", model=later) as optimizer:
        assert values(later) == values(rest)
        train(later, optimizer, range(6, 7))
        assert values(later) != values(rest)


def test_the_token_averages_statistics_and_brings_counts_up(open_box):
    nets = [model(), model()]
    team = [cluster(open_box(), net, rank) for rank, net in enumerate(nets)]
    norms = [net[1] for net in nets]
    train(nets[1], team[1], range(3))  # the token is at the other cluster: its own statistics
    train(nets[1], team[1].inner, range(10, 12))
    assert norms[1].num_batches_tracked.item() == 5
    before, alone = norms[1].running_var.clone(), model()
    train(alone, sgd(alone), range(5, 6))
    train(nets[0], team[0], range(5, 6))
    expected = (before + alone[1].running_var) / 2
    for norm in norms:
        torch.testing.assert_close(norm.running_var, expected, rtol=1e-6, atol=0)
        assert norm.num_batches_tracked.item() == 5
    latest, x = model(9), torch.randn(20, 4)
    team[0].center_into(latest)  # the token is at cluster 1 now
    assert torch.equal(latest.eval()(x), nets[1].eval()(x))
    norms[1].num_batches_tracked.fill_(9)
    before_nbytes = team[1].stats().nbytes
    train(nets[1], team[1], range(6, 7))
    assert norms[0].num_batches_tracked.item() == 9
    moved = team[1].stats().nbytes - before_nbytes  # each tensor read and written
    assert moved == 2 * sum(each.nbytes for each in (*nets[1].parameters(), *nets[1].buffers()))
    for each in team:
        each.close()


def test_clusters_resume_their_buffers(open_box):
    net, again = model(), model(9)
    one = cluster(open_box(), net, 0)
    train(net, one, range(4))
    saved = one.state_dict()
    one.close()
    world = World(0, 0, 1, 1)
    with HogwildPP(sgd(again), open_box(), "2", clusters=1, model=again, world=world) as two:
        two.load_state_dict(saved)
        assert values(again) == values(net)


@pytest.mark.parametrize("wrap", [Hogwild, HogwildPP])
def test_a_model_loaded_after_wrapping_is_refused_at_the_first_step(open_box, wrap):
    net, options = model(), {"clusters": 1, "world": World()} if wrap is HogwildPP else {}
    optimizer = wrap(sgd(net), open_box(), "run", **options)
    net.load_state_dict(model(5).state_dict())
    before = [parameter.tolist() for parameter in net.parameters()]
    with pytest.raises(ConfigError, match="load_state_dict of the wrapped optimizer"):
        train(net, optimizer, range(1))
    assert [parameter.tolist() for parameter in net.parameters()] == before
    optimizer.close()


def test_the_steps_of_others_and_ones_own_restoring_are_no_loading(open_box):
    nets = [model(), model()]
    workers = [Hogwild(sgd(net), open_box(), "run", model=net) for net in nets]
    workers[0].load_state_dict(workers[0].state_dict())
    train(nets[0], workers[0], range(2))
    workers[1].center_into(nets[1])  # the shared model into itself: nothing changes
    train(nets[1], workers[1], range(2, 3))
    assert workers[1].stats().steps == 1
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("kept", ["weight", "running_var"])
def test_a_tensor_that_is_replaced_after_wrapping_is_noticed(open_box, kept: str):
    net = model()
    with Hogwild(sgd(net), open_box(), "run", model=net) as optimizer:
        train(net, optimizer, range(1))
        old = getattr(net[1], kept)
        new = old.detach().clone()
        setattr(net[1], kept, nn.Parameter(new) if kept == "weight" else new)
        before = net[0].weight.tolist()
        with pytest.raises(ConfigError, match=f"was replaced.*{kept}"):
            train(net, optimizer, range(1, 2))
        assert net[0].weight.tolist() == before
        delattr(net[1], kept)
        with pytest.raises(ConfigError, match=f"was replaced.*{kept}"):
            optimizer.step()
        (net[1].register_parameter if kept == "weight" else net[1].register_buffer)(kept, old)
        train(net, optimizer, range(1, 2))


def test_a_module_that_is_replaced_after_wrapping_is_noticed(open_box):
    net = model()
    with Hogwild(sgd(net), open_box(), "run", model=net) as optimizer:
        train(net, optimizer, range(1))
        old, net[3] = net[3], nn.Linear(5, 1)
        before = net[0].weight.tolist()
        with pytest.raises(ConfigError, match="was replaced"):
            train(net, optimizer, range(1, 2))
        assert net[0].weight.tolist() == before
        net[3] = old
        train(net, optimizer, range(1, 2))


def test_other_models_and_tensors_that_cannot_be_shared_are_refused(open_box):
    first = model()
    with Hogwild(sgd(first), open_box(), "run", model=first):
        other = nn.Linear(4, 9)
        before = other.weight.tolist(), other.bias.tolist()
        with pytest.raises(LayoutMismatchError):
            Hogwild(sgd(other), open_box(), "run")
        with pytest.raises(ConfigError, match="none of the optimizer's parameters"):
            Hogwild(sgd(other), open_box(), "other", model=first)
        for dtype in (torch.complex64, torch.float8_e4m3fn):
            turned = nn.Parameter(torch.zeros(2, dtype=dtype))
            with pytest.raises(ConfigError, match="leave it out of the optimizer"):
                Hogwild(torch.optim.SGD([turned], lr=0.1), open_box(), "turned")
        other.statistics = nn.BatchNorm1d(2, device="meta")
        with pytest.raises(ConfigError, match="meta"):
            Hogwild(sgd(other), open_box(), "other", model=other)
        assert (other.weight.tolist(), other.bias.tolist()) == before


def test_a_name_belongs_to_one_algorithm_and_one_model(open_box):
    net = nn.Linear(2, 3, bias=False)
    with Hogwild(sgd(net), open_box(), "run"):
        other = nn.Linear(3, 2, bias=False)  # as many elements
        normed = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3, affine=False))
        kept = [values(each) for each in (other, normed)]
        with pytest.raises(LayoutMismatchError, match="other shapes"):
            Hogwild(sgd(other), open_box(), "run")
        with pytest.raises(LayoutMismatchError):  # others share its weights, but no statistics
            Hogwild(sgd(normed), open_box(), "run", model=normed)
        with pytest.raises(ConfigError, match="another algorithm"):
            HogwildPP(sgd(net), open_box(), "run", clusters=1, world=World())
        assert [values(each) for each in (other, normed)] == kept


@pytest.mark.parametrize(
    "make",
    [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1)],
)
def test_a_sparse_gradient_is_refused_before_any_parameter_is_stepped(open_box, make):
    net = nn.ModuleList([nn.Linear(2, 1), nn.Embedding(4, 2, sparse=True)])
    optimizer = Hogwild(make(net.parameters()), open_box(), "run", model=net)
    before = values(net)
    net[0](net[1](torch.tensor([1, 3]))).sum().backward()
    with pytest.raises(ConfigError, match="sparse"):
        optimizer.step()
    assert values(net) == before
    optimizer.close()


def test_a_state_of_another_model_is_refused_and_changes_nothing(open_box):
    net, other = model(), nn.Linear(4, 2)
    with Hogwild(sgd(other), open_box(), "other") as optimizer:
        saved = optimizer.state_dict()
    with Hogwild(sgd(net), open_box(), "run", model=net) as optimizer:
        before = values(net)
        with pytest.raises(ConfigError, match="another model"):
            optimizer.load_state_dict(saved)
        assert values(net) == before


def test_the_rest_of_a_model_is_copied_if_all_of_it_fits(open_box):
    frozen, target, other = model(), model(4), model(5)
    frozen[0].requires_grad_(False)
    trained = torch.optim.SGD(frozen[1:].parameters(), lr=0.05)
    with Hogwild(trained, open_box(), "run", model=frozen) as optimizer:
        other[1] = nn.BatchNorm1d(5, track_running_stats=False)
        before = values(other)
        with pytest.raises(ConfigError):
            optimizer.center_into(other)
        assert values(other) == before
        optimizer.center_into(target)
        assert values(target) == values(frozen)


def test_groups_without_names_have_an_unknown_order(open_box):
    net, target = nn.Linear(2, 2), nn.Linear(2, 2)
    groups = [{"params": [each]} for each in net.parameters()]
    with Hogwild(torch.optim.SGD(groups, lr=0.05), open_box(), "run") as optimizer:
        before = values(target)
        with pytest.raises(ConfigError, match="groups"):
            optimizer.center_into(target)
        assert values(target) == before


def test_buffers_of_another_device_are_refused(open_box):
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, affine=False, device="meta"))
    with pytest.raises(ConfigError, match="meta"):
        Hogwild(sgd(net), open_box(), "run", model=net)
