"""Ranks that load or change their models: alike, or all ranks learn who did not."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import HybridSGD, ParameterServer, RingAllReduce, SyncGroup
from smbox_torch.averaging.equal_state import EqualState, check_equal
from smbox_torch.averaging.optimizer import AveragingOptimizer
from smbox_torch.world import World

RANKS = 3
LONG_S = 20.0
KINDS = ["host", "hybrid", "hybrid-seasgd", "ring", "box"]

Wrap = Callable[[World, torch.optim.Optimizer], AveragingOptimizer]


@pytest.fixture(params=KINDS)
def wrap(request) -> Wrap:
    """``wrap(world, optimizer)`` on each rank of one run."""
    box, addresses, met = ModelBox(), [""] * RANKS, threading.Barrier(RANKS)

    def exchange_of(world: World):
        def exchange(address: str) -> list[str]:
            addresses[world.rank] = address
            met.wait(LONG_S)
            return addresses

        return exchange

    def make(world: World, optimizer) -> AveragingOptimizer:
        client = box.client(f"w{world.rank}")
        if request.param == "host":
            return SyncGroup(optimizer, world=world, bucket_nbytes=8, timeout_s=LONG_S)
        if request.param.startswith("hybrid"):
            way = "seasgd" if request.param == "hybrid-seasgd" else "elastic"
            more = {"period": 2, "timeout_s": LONG_S, "exchange": way}
            return HybridSGD(optimizer, client, "run", world=world, **more)
        if request.param == "ring":
            return RingAllReduce(
                optimizer, world=world, exchange=exchange_of(world), timeout_s=LONG_S
            )
        return ParameterServer(
            optimizer, client, "run", rank=world.rank, workers=RANKS, timeout_s=LONG_S
        )

    return make


def network() -> torch.nn.Linear:
    net = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    return net


def sgd(net: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()


def another(net: torch.nn.Module) -> None:
    net.load_state_dict({"weight": torch.full((1, 4), 5.0)})


def momentum(value: float) -> dict:
    """Return the state of a plain optimizer."""
    net = network()
    plain = sgd(net)
    net(torch.full((1, 4), value)).sum().backward()
    plain.step()
    return plain.state_dict()


def loads_the_model(net: torch.nn.Module, optimizer: AveragingOptimizer) -> None:
    another(net)


def loads_all_but_the_wrapper(net: torch.nn.Module, optimizer: AveragingOptimizer) -> None:
    another(net)
    optimizer.load_state_dict(momentum(0.0))


def loads_a_momentum(net: torch.nn.Module, optimizer: AveragingOptimizer) -> None:
    optimizer.load_state_dict(momentum(3.0))


def follows_its_own_loss(net: torch.nn.Module, optimizer: AveragingOptimizer) -> None:
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for loss in (1.0, 2.0):
        schedule.step(loss)


CHANGES = [loads_the_model, loads_all_but_the_wrapper, loads_a_momentum, follows_its_own_loss]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("steps", [0, 2])
def test_all_ranks_learn_that_one_has_loaded_something_else(
    run_ranks, wrap: Wrap, steps: int, change: Callable[..., None]
):
    def work(world: World) -> list[int]:
        net = network()
        with wrap(world, sgd(net)) as optimizer:
            train(net, optimizer, steps)
            if world.rank == 1:
                change(net, optimizer)
            before = net.weight.detach().clone()
            with pytest.raises(ConfigError, match="rank 1 has other") as error:
                train(net, optimizer)
            assert torch.equal(net.weight, before)
            assert optimizer.steps == steps
            optimizer.close(exchange=False)
        return error.value.facts["ranks"]

    assert run_ranks(RANKS, work) == [[1]] * RANKS


@pytest.mark.parametrize("wrap", KINDS[:-1], indirect=True)  # the last refuses the wrapping
def test_ranks_whose_parameters_have_another_order_learn_it_before_a_step(
    run_ranks, wrap: Wrap
):
    def work(world: World) -> int:
        net = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(2)))
        named = list(net.named_parameters())[:: -1 if world.rank else 1]
        with wrap(world, torch.optim.SGD(named, lr=0.1)) as optimizer:
            with pytest.raises(ConfigError, match="another order"):
                net(torch.ones(2, 4)).sum().backward()
            optimizer.close(exchange=False)
        return optimizer.steps

    assert run_ranks(RANKS, work) == [0] * RANKS


def test_schedules_that_are_equal_read_no_parameters(run_ranks, wrap: Wrap, monkeypatch):
    digest, found = EqualState.digest, []
    monkeypatch.setattr(EqualState, "digest", lambda own: found.append(1) or digest(own))

    def work(world: World) -> float:
        net = network()
        with wrap(world, sgd(net)) as optimizer:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            for step in range(3):
                if step == 1:
                    net.load_state_dict(net.state_dict())
                train(net, optimizer)
                schedule.step()
        return optimizer.param_groups[0]["lr"]

    assert run_ranks(RANKS, work) == [0.0125] * RANKS
    assert len(found) == 2 * RANKS  # in the first round, and in that after the load


def test_a_load_before_the_step_that_follows_a_backward_is_noticed_after_it(
    run_ranks, wrap: Wrap
):
    def work(world: World) -> None:
        net = network()
        with wrap(world, sgd(net)) as optimizer:
            train(net, optimizer)
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().mean().backward()
            if world.rank == 0:
                another(net)
            optimizer.step()
            with pytest.raises(ConfigError, match="rank 0 has other"):
                train(net, optimizer)
            optimizer.close(exchange=False)

    run_ranks(RANKS, work)


@pytest.mark.parametrize("with_state", [False, True])
def test_a_model_that_all_ranks_load_after_the_wrapping_is_refused_as_by_every_class(
    run_ranks, wrap: Wrap, with_state: bool
):
    def work(world: World) -> None:
        net = network()
        with wrap(world, sgd(net)) as optimizer:
            another(net)
            if with_state:
                optimizer.load_state_dict(momentum(0.0))
            with pytest.raises(ConfigError, match="load the model before"):
                train(net, optimizer)
            optimizer.close(exchange=False)

    run_ranks(RANKS, work)


def test_ranks_that_load_one_file_go_on_alike(run_ranks, wrap: Wrap, request):
    saved: dict[int, dict] = {}

    def work(world: World):
        net = network()
        optimizer = wrap(world, sgd(net))
        train(net, optimizer, 2)
        saved[world.rank] = copy.deepcopy(optimizer.state_dict())
        train(net, optimizer, 2)
        expected = net.weight.detach().clone()
        optimizer.load_state_dict(copy.deepcopy(saved[world.rank]), **force)
        assert (optimizer.steps, optimizer.workers, optimizer.rank) == (2, RANKS, world.rank)
        train(net, optimizer, 2)
        optimizer.close(exchange=False)
        return expected.tolist(), net.weight.tolist()

    is_centered = "hybrid" in request.node.name or "box" in request.node.name
    force = {"force": True} if is_centered else {}
    for expected, found in run_ranks(RANKS, work):
        assert found == expected


def test_a_model_that_all_ranks_change_alike_between_steps_may_be_changed(
    run_ranks, wrap: Wrap
):
    def work(world: World):
        net = network()
        with wrap(world, sgd(net)) as optimizer:
            for _ in range(4):
                train(net, optimizer)
                with torch.no_grad():
                    net.weight.clamp_(min=-0.01, max=0.01)
            optimizer.close(exchange=False)
        return net.weight.tolist()

    first, *others = run_ranks(RANKS, work)
    assert others == [first] * (RANKS - 1)


@pytest.mark.parametrize("most", [2, 4])
def test_a_rank_that_follows_may_hold_what_its_leader_has_clipped(
    run_ranks, wrap: Wrap, most: int
):
    def work(world: World):
        net = network()
        optimizer = wrap(world, sgd(net))
        with optimizer.join():
            for _ in range(most if world.rank == 1 else 1):
                train(net, optimizer)
                with torch.no_grad():
                    net.weight.clamp_(min=-0.01, max=0.01)
        train(net, optimizer)
        optimizer.close(exchange=False)
        return net.weight.tolist()

    first, *others = run_ranks(RANKS, work)
    assert others == [first] * (RANKS - 1)


def test_gradients_that_replace_averaged_ones_are_averaged_without_a_backward(
    run_ranks, wrap: Wrap
):
    def work(world: World):
        net = network()
        with wrap(world, sgd(net)) as optimizer:
            for scale in (
                float("nan"),
                1.0,
            ):  # a step that all ranks skip, and one that none does
                loss = scale * (1.0 + world.rank) * net(torch.ones(1, 4)).sum()
                net.weight.grad = torch.autograd.grad(loss, net.weight)[0]
                optimizer.synchronize()
                net.weight.grad.mul_(0.5)  # clipped in place: it stays the mean
                optimizer.synchronize()
            mean = net.weight.grad.tolist()
            optimizer.step()
            optimizer.close(exchange=False)
        return mean, net.weight.tolist()

    results = run_ranks(RANKS, work)
    assert results[0][0] == [[1.0] * 4]  # half of the mean of 1, 2 and 3
    assert results[1:] == [results[0]] * (RANKS - 1)


def test_the_error_names_the_fewer_ranks_and_of_halves_those_without_the_lowest():
    for digests, ranks in (
        ({0: 7, 1: 5, 2: 5}, [0]),
        ({0: 7, 1: 5}, [1]),
        ({4: 7, 5: 5, 6: 7, 7: 5}, [5, 7]),
        ({0: 1, 1: 2, 2: 3}, [1, 2]),
    ):
        with pytest.raises(ConfigError) as error:
            check_equal(digests)
        assert error.value.facts["ranks"] == ranks
    check_equal({0: 7, 1: 7})
