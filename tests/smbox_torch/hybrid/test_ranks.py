"""What each rank of a HybridSGD group may do: read the center, save, load, count groups."""

from __future__ import annotations

import copy
import dataclasses
import threading
import uuid

import numpy as np
import pytest
import torch

import smbox
from smbox.errors import ConfigError, StepMismatchError, WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.model.master import Master
from smbox_torch.world import World

LONG_S = 60.0


def worlds(ranks: int, **settings) -> list[World]:
    run_id = uuid.uuid4().hex
    settings = {"world_size": ranks, "local_world_size": ranks, "run_id": run_id} | settings
    return [World(rank, rank, **settings) for rank in range(ranks)]


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


def wrapped(world: World, net: torch.nn.Module, box, **options) -> HybridSGD:
    options = {"period": 2, "moving_rate": 0.5, "timeout_s": LONG_S} | options
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    return HybridSGD(sgd, box, "run", model=net, world=world, **options)


def train(optimizer: HybridSGD, net: torch.nn.Module, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("has_box", [True, False])
def test_every_rank_reads_the_center_alone(each, has_box: bool):
    """One without a box connects to the root's; nobody else has to call."""
    with smbox.local(memory="16MiB") as box:

        def work(world: World) -> tuple[bytes, bytes]:
            net, other = model(), model()
            mine = box if world.is_group_root or has_box else None
            optimizer = wrapped(world, net, mine)
            train(optimizer, net, world.rank, range(3))
            if world.rank == 1:
                optimizer.center_into(other)
            optimizer.close(exchange=False)  # the root may come here first
            return bytes_of(other)

        found = each(worlds(2), work)[1]
        center = box.attach("run.float32").get()
        assert found == center.tobytes()
        assert np.abs(center).max() > 0


@pytest.mark.parametrize("has_box", [True, False])
def test_each_rank_evaluates_the_center_in_its_own_model(each, has_box: bool):
    """Between eval and train; the saved state is that of the training meanwhile."""
    with smbox.local(memory="16MiB") as box:

        def work(world: World) -> None:
            net, other = model(), model()
            mine = box if world.is_group_root or has_box else None
            with wrapped(world, net, mine) as optimizer:
                train(optimizer, net, world.rank, range(3))
                own, saved = copy.deepcopy(net.state_dict()), optimizer.state_dict()
                optimizer.center_into(other)
                optimizer.eval()
                assert bytes_of(net) == bytes_of(other)
                assert torch.equal(net[0].running_mean, other[0].running_mean)
                kept = optimizer.state_dict()["parameters"]["float32"]
                assert torch.equal(kept, saved["parameters"]["float32"])
                for refused in (optimizer.step, optimizer.exchange):
                    with pytest.raises(ConfigError, match="holds the center"):
                        refused()
                optimizer.train()
                assert all(torch.equal(own[key], x) for key, x in net.state_dict().items())
                train(optimizer, net, world.rank, range(3, 5))
                optimizer.eval()
                optimizer.finish()
            assert bytes_of(net) == box.attach("run.float32").get().tobytes()
            net.load_state_dict(other.state_dict())
            optimizer.eval()
            assert bytes_of(net) == bytes_of(other)

        each(worlds(2), work)


def bytes_of(net: torch.nn.Module) -> bytes:
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy().tobytes()


def test_a_member_cannot_read_a_center_that_has_no_address(each):
    def work(world: World) -> None:
        net = model()
        box = ModelBox() if world.is_group_root else None
        if box is not None:
            box.address = ""
        with wrapped(world, net, box) as optimizer:
            if box is None:
                with pytest.raises(ConfigError, match="give every rank a box"):
                    optimizer.center_into(net)

    each(worlds(2), work)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("whose", ["own", "root"])
def test_each_rank_saves_alone_and_all_load_their_own_or_the_roots(
    each, overlap: bool, whose: str
):
    members, saved = worlds(2), {}

    def before(world: World) -> bytes:
        net = model()
        optimizer = wrapped(world, net, box.client("w"), overlap=overlap)
        train(optimizer, net, world.rank, range(4))
        saved[world.rank] = copy.deepcopy(optimizer.state_dict())
        train(optimizer, net, world.rank, range(4, 7))
        optimizer.close()
        return bytes_of(net)

    def after(world: World) -> bytes:
        net = model()
        optimizer = wrapped(world, net, again.client("w"), overlap=overlap)
        mine = saved[world.rank if whose == "own" else 0]
        optimizer.load_state_dict(copy.deepcopy(mine))  # each process loads its own copy
        train(optimizer, net, world.rank, range(4, 7))
        optimizer.close()
        return bytes_of(net)

    box, again = ModelBox(), ModelBox()
    torch.manual_seed(0)
    expected = each(members, before)
    assert [saved[rank]["extra"]["moves"] is not None for rank in (0, 1)] == [overlap] * 2
    assert not saved[1]["centers"]
    assert [saved[rank]["rank"] for rank in (0, 1)] == [0, 1]
    assert each(worlds(2), after) == expected
    assert expected[0] == expected[1]


@pytest.mark.parametrize("parts", [slice(0, 2), slice(1, 2)], ids=["statistics", "none"])
def test_a_root_that_loads_the_state_of_a_member_makes_the_parameters_the_center(
    each, parts: slice
):
    def work(world: World) -> bytes:
        net = model()[parts]
        optimizer = wrapped(world, net, box.client("w"), overlap=True)
        if not saved:
            met(world, optimizer, net)
        else:
            optimizer.load_state_dict(saved["state"])
            optimizer.close()
        return bytes_of(net)

    def met(world: World, optimizer: HybridSGD, net: torch.nn.Module) -> None:
        train(optimizer, net, world.rank, range(4))
        if world.rank == 1:
            state["state"] = optimizer.state_dict()
        optimizer.close()

    saved, state, box = {}, {}, ModelBox()
    each(worlds(2), work)
    saved, box = state, ModelBox()
    first, second = each(worlds(2), work)
    parameters = torch.cat([each.flatten() for each in saved["state"]["parameters"].values()])
    assert first == second == parameters.numpy().tobytes()
    assert box.attach("run.float32").get().tobytes() == first


def test_a_state_of_another_algorithm_is_refused_on_every_rank(each):
    def work(world: World) -> None:
        net = model()
        with wrapped(world, net, ModelBox()) as optimizer:
            for wrong, why in (({}, "not the state"), ({"algorithm": "EASGD"}, "another alg")):
                with pytest.raises(ConfigError, match=why):
                    optimizer.load_state_dict(wrong)

    each(worlds(2), work)


@pytest.mark.parametrize("skips", [0, 1])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_rank_that_skips_an_exchange_is_named_on_all_ranks(each, skips: int, overlap: bool):
    """A root that skips does not tell the move that the others wait for."""

    def work(world: World) -> None:
        net, box = model(), ModelBox()
        with wrapped(world, net, box, period=1, overlap=overlap) as optimizer:
            train(optimizer, net, world.rank, range(2))
            for step in (2, 3):
                net(torch.ones(4, 3) * step).sum().backward()
                if (world.rank, step) != (skips, 2):
                    optimizer.step()

    def told(world: World) -> str:
        with pytest.raises(StepMismatchError) as caught:
            work(world)
        return str(caught.value)

    for message in each(worlds(2), told):
        assert f"rank {skips} skipped" in message


@pytest.mark.parametrize("short", [0, 1])
def test_a_rank_with_fewer_batches_is_named_at_once(each, short: int):
    def work(world: World) -> None:
        net = model()
        with wrapped(world, net, ModelBox()) as optimizer:
            optimizer.steps = 4  # as after a checkpoint; the loop's own steps are told
            train(optimizer, net, world.rank, range(3 if world.rank == short else 5))
            optimizer.finish()

    def told(world: World) -> str:
        with pytest.raises((StepMismatchError, WorkerLostError)) as caught:
            work(world)
        return str(caught.value)

    messages = each(worlds(2), told)
    assert f"rank {short} finished after 3 steps" in messages[1 - short]


def uneven() -> list[World]:
    """A host with one worker and one with three."""
    run_id = uuid.uuid4().hex
    alone = World(0, 0, world_size=4, local_world_size=1, group_rank=0, run_id=run_id)
    return [
        alone,
        *(
            World(1 + r, r, world_size=4, local_world_size=3, group_rank=1, run_id=run_id)
            for r in range(3)
        ),
    ]


def test_the_default_moving_rate_of_uneven_hosts_is_the_same_on_all(each):
    members = [dataclasses.replace(world, group_world_size=2) for world in uneven()]
    boxes = ModelBox(), ModelBox()  # each host moves alone

    def work(world: World) -> float:
        net, box = model(), boxes[world.group_rank]
        options = {"exchange": "seasgd", "moving_rate": None, "period": 1}
        with wrapped(world, net, box, **options) as optimizer:
            center = net[1].bias.item()
            net[1].bias.grad = torch.tensor([10.0])
            optimizer.step()  # by -1, and then by a part of the way back to the center
            return 1.0 - (center - net[1].bias.item())

    assert each(members, work) == pytest.approx([0.45] * 4)


def test_a_default_moving_rate_without_the_number_of_hosts_is_refused_on_every_rank():
    for world in uneven():
        with pytest.raises(ConfigError, match="groups="):
            wrapped(world, model(), ModelBox(), exchange="seasgd", moving_rate=None)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_rank_that_is_interrupted_within_an_exchange_leaves_its_group(
    each, monkeypatch, overlap: bool
):
    """Its parameters may lack the move that the others have."""
    interrupted, subtract = [], Master.subtract

    def interrupt(master: Master, move: torch.Tensor) -> None:
        if threading.get_ident() in interrupted:
            raise KeyboardInterrupt
        subtract(master, move)

    def work(world: World) -> None:
        net = model()
        optimizer = wrapped(world, net, ModelBox(), period=1, overlap=overlap)
        train(optimizer, net, world.rank, range(2))
        if world.rank == 1:
            interrupted.append(threading.get_ident())
            with pytest.raises(KeyboardInterrupt):
                train(optimizer, net, world.rank, range(2, 3))
        error, text = [(WorkerLostError, "rank 1 has left"), (ConfigError, "closed")][
            world.rank
        ]
        with pytest.raises(error, match=text):
            train(optimizer, net, world.rank, range(3, 9))
        optimizer.__exit__(error, error(text), None)

    monkeypatch.setattr(Master, "subtract", interrupt)
    each(worlds(2), work)
