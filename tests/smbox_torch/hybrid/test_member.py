"""A rank of a HybridSGD group other than the root: what it refuses, loads and copies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.hybrid.member import HybridMember
from smbox_torch.hybrid.root import address_bytes
from smbox_torch.world import World


def network(width: int = 3) -> torch.nn.Sequential:
    """Return a model whose last part no optimizer has."""
    return torch.nn.Sequential(
        torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1), torch.nn.Linear(1, 1)
    )


def trained(net: torch.nn.Sequential) -> Iterator[torch.nn.Parameter]:
    return net[:2].parameters()


def member(net: torch.nn.Sequential, parameters=None, **options) -> HybridMember:
    given = list(trained(net)) if parameters is None else parameters
    sgd = torch.optim.SGD(given, lr=0.1)
    box = options.pop("box", ModelBox())
    return HybridMember(sgd, box, "run", address_bytes(box), "HybridRoot", **options)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"box": "tcp://node:1"}, TypeError),
        ({"model": "net"}, TypeError),
        ({"model": torch.nn.Linear(1, 1)}, ConfigError),
    ],
)
def test_a_member_refuses_what_a_root_does(wrong: dict, error: type):
    with pytest.raises(error):
        member(network(), **wrong)


def test_a_copy_of_the_center_has_counts_and_parameters_that_no_optimizer_has():
    net, other = network(), network()
    net[0].num_batches_tracked.fill_(5)
    member(net, model=net).center_into(other)
    assert int(other[0].num_batches_tracked) == 5
    for own, copied in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(own, copied)


def test_parameters_in_several_groups_without_names_are_not_matched_by_order():
    first, second = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
    groups = [{"params": list(each.parameters())} for each in (second, first)]
    with pytest.raises(ConfigError, match="several groups"):
        member(network(), groups).center_into(torch.nn.Sequential(first, copy.deepcopy(second)))


def test_a_state_of_another_model_changes_nothing():
    net = network()
    own, before = member(net, model=net), copy.deepcopy(net.state_dict())
    narrow = network(2)
    state = member(narrow, model=narrow).state_dict()
    with pytest.raises(ConfigError, match="another model"):
        own.load_state_dict(state)
    assert all(torch.equal(before[name], x) for name, x in net.state_dict().items())


def test_a_state_whose_optimizer_has_other_groups_is_refused():
    net = network()
    own = member(net, model=net)
    halves = [{"params": list(net[part].parameters())} for part in (0, 1)]
    state = own.state_dict() | {"inner": torch.optim.SGD(halves, lr=0.1).state_dict()}
    with pytest.raises(ConfigError, match="other groups"):
        own.load_state_dict(state)


def test_what_every_rank_loads_during_an_evaluation_stays(worlds, each):
    box = ModelBox()

    def work(world: World) -> list[torch.Tensor]:
        net = torch.nn.Linear(3, 1, bias=False)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        with HybridSGD(sgd, box, "run", world=world, period=2) as optimizer:
            saved = copy.deepcopy(optimizer.state_dict())
            loaded = net.weight.detach().clone()
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.eval()
            optimizer.load_state_dict(saved, force=True)
            optimizer.train()
            found = net.weight.detach().clone()
            optimizer.close(exchange=False)
        return [loaded, found]

    for loaded, found in each(worlds(1, 2), work):
        assert torch.equal(loaded, found)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_error_in_an_evaluation_leaves_every_rank_what_was_trained(
    worlds, each, overlap: bool
):
    def work(world: World, box: ModelBox, *, evaluates: bool) -> list[float]:
        x = torch.nn.Parameter(torch.ones(3))
        settings = {"overlap": overlap, "moving_rate": 0.3}
        optimizer = HybridSGD(torch.optim.SGD([x], lr=0.5), box, "run", world=world, **settings)

        def train() -> None:
            for _ in range(3):
                optimizer.zero_grad()
                x.sum().backward()
                optimizer.step()
            if evaluates:
                optimizer.eval()
            raise KeyError

        with pytest.raises(KeyError), optimizer:
            train()
        return x.tolist()

    found = [
        each(worlds(1, 2), partial(work, box=ModelBox(), evaluates=evaluates))
        for evaluates in (False, True)
    ]
    assert found[1] == found[0] == [found[0][0]] * 2
