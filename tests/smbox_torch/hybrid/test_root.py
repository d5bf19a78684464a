"""The root of a HybridSGD group: what it checks and awaits before and after an exchange."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

from smbox.errors import ConfigError, StepMismatchError, WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox_torch.hybrid.exchange import GroupExchange
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.hybrid.root import groups_of
from smbox_torch.workers.phase import Phase
from smbox_torch.workers.team import FixedTeam
from smbox_torch.world import World


class SlowBox(ModelBox):
    """Waits longer than a step before each add."""

    def create(self, *args, **kwargs):
        region = super().create(*args, **kwargs)
        add = region.accumulate

        def accumulate(*values, **named):
            threading.Event().wait(0.05)
            add(*values, **named)

        region.accumulate = accumulate
        return region


def wrapped(world: World, box: ModelBox, net: torch.nn.Module, **options) -> HybridSGD:
    sgd = torch.optim.SGD((p for p in net.parameters() if p.requires_grad), lr=0.5)
    return HybridSGD(sgd, box, "run", world=world, **options)


def step(optimizer: HybridSGD, net: torch.nn.Module) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


def weights(net: torch.nn.Linear) -> np.ndarray:
    return net.weight.detach().numpy().ravel()


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(3, 1, bias=False)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_root_whose_rank_was_taken_exchanges_nothing(worlds, monkeypatch, overlap: bool):
    def taken(_: FixedTeam) -> None:
        raise PermissionError

    net, box = linear(), ModelBox()
    optimizer = wrapped(worlds(1, 1)[0], box, net, overlap=overlap)
    monkeypatch.setattr(FixedTeam, "check", taken)
    with pytest.raises(PermissionError):
        optimizer.exchange()
    assert box.order("run.float32", "elastic") == []


@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_with_another_parameter_is_not_exchanged(worlds, overlap: bool):
    net, box = linear(), ModelBox()
    optimizer = wrapped(worlds(1, 1)[0], box, net, overlap=overlap, period=9, model=net)
    net.weight = torch.nn.Parameter(torch.ones(1, 3))
    with pytest.raises(ConfigError):
        optimizer.exchange()
    assert box.order("run.float32", "elastic") == []


def test_statistics_wait_for_a_checkpoint_that_is_being_restored(worlds, monkeypatch):
    def restoring(_: Phase) -> None:
        raise TimeoutError

    net, box = torch.nn.Sequential(torch.nn.BatchNorm1d(3), linear()), ModelBox()
    optimizer = wrapped(worlds(1, 1)[0], box, net, model=net)
    monkeypatch.setattr(Phase, "use", restoring)
    with pytest.raises(TimeoutError):
        optimizer.exchange()
    assert box.order("run.buffers.float32", "elastic") == []


def test_other_parameters_that_differ_between_groups_are_an_error(worlds):
    box = ModelBox()
    made = []
    for world in worlds(2, 1):
        net = torch.nn.Sequential(linear(), torch.nn.Linear(1, 1)).requires_grad_(False)
        net[1].weight.fill_(world.rank)
        net[0].requires_grad_()
        made.append((wrapped(world, box, net, model=net), net))
    step(*made[0])
    with pytest.raises(ConfigError, match="no wrapped optimizer has"):
        step(*made[1])
    for optimizer, _ in made:
        optimizer.close(exchange=False)


def test_the_end_waits_for_the_own_add(worlds):
    net, box = linear(), SlowBox()
    optimizer = wrapped(worlds(1, 1)[0], box, net, exchange="seasgd", overlap=True)
    step(optimizer, net)
    optimizer.finish()
    np.testing.assert_array_equal(weights(net), center(box))


def test_no_add_of_the_past_comes_after_a_checkpoint(worlds):
    net, box = linear(), SlowBox()
    optimizer = wrapped(worlds(1, 1)[0], box, net, exchange="seasgd", overlap=True)
    saved, before = optimizer.state_dict(), center(box)
    step(optimizer, net)
    optimizer.load_state_dict(saved, force=True)
    optimizer.close(exchange=False)
    np.testing.assert_array_equal(center(box), before)


def test_the_default_rate_follows_the_number_of_groups(worlds, monkeypatch):
    net, box = linear(), ModelBox()
    optimizer = wrapped(worlds(1, 1)[0], box, net, exchange="seasgd", period=9)
    monkeypatch.setattr(FixedTeam, "workers", 3)  # groups that joined later
    step(optimizer, net)  # exchanges nothing that moved
    before = center(box)
    step(optimizer, net)
    moved = weights(net) - before
    optimizer.close()
    np.testing.assert_allclose(center(box), before + 0.3 * moved, rtol=1e-5)


@pytest.mark.parametrize("error", [WorkerLostError, StepMismatchError])
def test_the_error_of_the_loop_comes_before_what_follows_from_it(
    worlds, monkeypatch, error: type
):
    def fail(_: GroupExchange) -> None:
        raise error("of the group")

    net = linear()
    optimizer = wrapped(worlds(1, 1)[0], ModelBox(), net)
    monkeypatch.setattr(GroupExchange, "settle", fail)
    with pytest.raises(KeyError), optimizer:
        raise KeyError("of the loop")


def test_process_groups_are_not_counted_as_hosts(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 4 if group is None else 2)
    world, group = World(0, 0, 4, 2, group_rank=0, group_world_size=1), object()
    with pytest.raises(ConfigError, match="groups="):
        groups_of(world, group, is_needed=True)
