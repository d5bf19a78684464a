"""Parameters of a model that the wrapped optimizer does not have."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, Downpour, Hogwild, ParameterServer, RingAllReduce, SyncGroup
from smbox_torch.model.others import other_parameters

BOXED = (EASGD, Downpour, ParameterServer)


def network(seed: int) -> torch.nn.Sequential:
    """A backbone that is not trained, and a head that is."""
    backbone, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.fill_(float(seed))
        for parameter in head.parameters():
            parameter.fill_(0.5)
    return torch.nn.Sequential(backbone, head)


def of_head(model: torch.nn.Sequential) -> torch.optim.SGD:
    return torch.optim.SGD(model[1].parameters(), lr=0.1)


def step(model: torch.nn.Sequential, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", BOXED)
def test_workers_with_other_values_are_refused(kind):
    box, first, same, other = ModelBox(), network(1), network(1), network(2)
    for model in (first, same):
        optimizer = kind(of_head(model), box, "run", model=model, workers=1)
        step(model, optimizer)
        optimizer.close(exchange=False)
    optimizer = kind(of_head(other), box, "run", model=other, workers=1)
    before, center = other[1].weight.detach().clone(), box.attach("run.float32").get()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"first worker.*seed all workers equally"):
            step(other, optimizer)
    assert torch.equal(other[1].weight, before)
    assert box.attach("run.float32").get().tolist() == center.tolist()
    optimizer.close(exchange=False)


def test_values_are_compared_at_the_first_step_only():
    box, model = ModelBox(), network(1)
    optimizer = EASGD(of_head(model), box, "run", model=model, workers=1)
    for _ in range(2):
        step(model, optimizer)
    assert [entry.op for entry in box.log if entry.region == "run.others"] == ["get"]
    optimizer.close()


def test_workers_of_hogwild_with_other_values_are_refused(open_box):
    first, other = network(1), network(2)
    with (
        Hogwild(of_head(first), open_box(), "run", model=first) as optimizer,
        Hogwild(of_head(other), open_box(), "run", model=other) as second,
    ):
        step(first, optimizer)
        with pytest.raises(ConfigError, match="seed all workers equally"):
            step(other, second)


def test_tensors_without_plain_values_are_not_compared():
    class Own(torch.Tensor):
        pass

    model = network(1)
    model.quantised = torch.nn.Parameter(torch.ones(3).as_subclass(Own), requires_grad=False)
    model.absent = torch.nn.Parameter(torch.ones(3, device="meta"), requires_grad=False)
    model.sparse = torch.nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)
    optimizer = EASGD(of_head(model), ModelBox(), "run", model=model, workers=1)
    step(model, optimizer)
    optimizer.close()


def test_ranks_of_a_host_begin_with_those_of_the_first(run_ranks):
    def work(world) -> float:
        model = network(1 + world.rank)
        with SyncGroup(of_head(model), model, world=world):
            return model[0].weight[0, 0].item()

    assert run_ranks(2, work) == [1.0, 1.0]


def test_ranks_of_a_ring_begin_with_those_of_the_first(run_ranks):
    addresses, everyone = ["", ""], threading.Barrier(2)

    def work(world) -> float:
        def exchange(address: str) -> list[str]:
            addresses[world.rank] = address
            everyone.wait(30.0)
            return addresses

        model = network(1 + world.rank)
        with RingAllReduce(of_head(model), model, world=world, exchange=exchange):
            return model[0].weight[0, 0].item()

    assert run_ranks(2, work) == [1.0, 1.0]


def test_another_model_gets_them_from_the_center():
    model, target = network(1), network(2)
    box = ModelBox()
    optimizer = EASGD(of_head(model), box, "run", model=model, workers=1)
    optimizer.center_into(target)
    assert all(map(torch.equal, model.parameters(), target.parameters()))
    center = box.attach("run.float32")
    center.put(np.full(center.shape, 9.0, np.float32))
    optimizer.close(exchange=False)  # its own parameters are still those of the center
    optimizer.center_into(target)
    assert torch.equal(target[0].weight, model[0].weight)
    assert (target[1].weight == 9.0).all()


def test_another_model_gets_them_from_a_rank(run_ranks):
    def work(world) -> bool:
        model, target = network(1), network(2)
        with SyncGroup(of_head(model), model, world=world) as optimizer:
            optimizer.center_into(target)
        return all(map(torch.equal, model.parameters(), target.parameters()))

    assert run_ranks(1, work) == [True]


def test_another_model_gets_them_from_hogwild(open_box):
    model, target = network(1), network(2)
    with Hogwild(of_head(model), open_box(), "run", model=model) as optimizer:
        optimizer.center_into(target)
    assert all(map(torch.equal, model.parameters(), target.parameters()))


def test_two_optimizers_may_train_the_parts_of_one_model():
    """Whatever the second worker's parts were: each optimizer sets its own to its center."""
    box = ModelBox()
    for seed in range(2):
        model = network(seed)
        body = torch.optim.SGD(model[0].parameters(), lr=0.1)
        first = EASGD(body, box, "a", model=model, workers=1)
        second = EASGD(of_head(model), box, "b", model=model, workers=1)
        for _ in range(3):
            step(model, first)
            second.step()
        first.finish()
        second.finish()


def test_a_signal_handler_that_closes_a_wrapper_does_not_wait_for_what_it_interrupted():
    model = network(1)
    optimizer = EASGD(of_head(model), ModelBox(), "run", model=model, workers=1)

    def parameters():
        optimizer.close()  # as a handler would, between two parameters
        yield from model[1].parameters()

    found = []
    thread = threading.Thread(
        target=lambda: found.extend(other_parameters(model, parameters())), daemon=True
    )
    thread.start()
    thread.join(20.0)
    assert found == list(model[0].parameters())


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_parameters_of_a_closed_or_collected_wrapper_are_others_again(is_closed: bool):
    model = network(1)
    optimizer = EASGD(of_head(model), ModelBox(), "run", model=model, workers=1)
    assert other_parameters(model, ()) == list(model[0].parameters())
    if is_closed:
        optimizer.close()
    else:
        del optimizer
        gc.collect()
    assert other_parameters(model, ()) == list(model.parameters())


def test_a_model_of_others_is_refused():
    with pytest.raises(ConfigError, match="none of the optimizer's parameters"):
        EASGD(of_head(network(1)), ModelBox(), "run", model=network(1), workers=1)
