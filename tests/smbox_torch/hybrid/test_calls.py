"""Calls of HybridSGD beside the steps: after the end, before the first step, in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, RequestTimeoutError
from smbox.testing.interrupts import interrupted
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox_torch.hybrid import hybrid, member
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.world import World

Made = tuple[HybridSGD, torch.nn.Linear, ModelBox]


@pytest.fixture
def make(worlds) -> Callable[..., Made]:
    """``make(**options)``: a group of one, its model and its box."""

    def make(groups: int = 1, **options) -> Made:
        net, box = torch.nn.Linear(3, 1, bias=False), ModelBox()
        torch.nn.init.constant_(net.weight, 5.0)  # far from 0, where a rounding would be much
        sgd = torch.optim.SGD(net.parameters(), lr=0.5)
        settings = {"period": 10, "moving_rate": 0.5, "world": worlds(groups, 1)[0]} | options
        return HybridSGD(sgd, box, "run", **settings), net, box

    return make


def step(optimizer: HybridSGD, net: torch.nn.Module, times: int = 1) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


def test_nothing_is_exchanged_after_the_end(make):
    optimizer, net, box = make()
    step(optimizer, net, 2)
    before = center(box)
    optimizer.close(exchange=False)
    optimizer.close()
    with pytest.raises(ConfigError, match="closed"):
        optimizer.exchange()
    np.testing.assert_array_equal(center(box), before)


def test_parameters_that_were_loaded_after_wrapping_are_not_exchanged(make):
    optimizer, net, _ = make()
    with torch.no_grad():
        net.weight.add_(1.0)
    with pytest.raises(ConfigError, match="wrap"):
        optimizer.exchange()
    optimizer.close(exchange=False)


def test_the_own_model_may_take_the_center_before_the_first_step(make):
    optimizer, net, box = make()
    box.attach("run.float32").put(np.full(3, 2.0, np.float32))
    optimizer.center_into(net)
    step(optimizer, net)
    assert net.weight.tolist() == [[1.5] * 3]
    optimizer.close()


def test_closing_in_evaluation_exchanges_what_was_trained(make):
    optimizer, net, box = make()
    step(optimizer, net, 2)
    trained, before = net.weight.detach().numpy().ravel().copy(), center(box)
    optimizer.eval()
    optimizer.close()
    np.testing.assert_allclose(center(box), (trained + before) / 2, rtol=1e-6, atol=1e-7)


def test_closing_applies_the_move_of_an_exchange_in_flight(make):
    optimizer, net, box = make(period=2, overlap=True)
    step(optimizer, net, 2)
    trained = net.weight.detach().numpy().ravel().copy()
    optimizer.close(exchange=False)
    np.testing.assert_allclose(net.weight.detach().numpy().ravel(), center(box), rtol=1e-6)
    assert not np.array_equal(trained, center(box))


@pytest.mark.parametrize("call", ["center_into", "eval", "load_state_dict"])
def test_nobody_writes_the_parameters_while_they_are_sent(make, monkeypatch, call: str):
    optimizer, net, _ = make(period=2, overlap=True)
    saved = optimizer.state_dict()
    step(optimizer, net)
    values, is_sent, elastic = [], threading.Event(), ModelRegion.elastic

    def slow(*operands, **options) -> None:
        values.append(net.weight.detach().clone())
        is_sent.set()
        time.sleep(0.05)
        values.append(net.weight.detach().clone())
        elastic(*operands, **options)

    monkeypatch.setattr(ModelRegion, "elastic", slow)
    step(optimizer, net)
    is_sent.wait(60.0)
    arguments = {"center_into": [net], "load_state_dict": [saved]}.get(call, [])
    getattr(optimizer, call)(*arguments)
    assert torch.equal(values[0], values[1])
    optimizer.close()


def test_a_close_that_was_interrupted_at_any_line_can_be_repeated(make):
    at, is_hit = 0, True
    while is_hit:
        at += 1
        optimizer, net, _ = make(period=2, overlap=True)
        step(optimizer, net)
        is_hit = interrupted(at, partial(optimizer.close, exchange=False), (hybrid.__file__,))
        optimizer.close(exchange=False)
        assert "update" not in str(threading.enumerate()), at
    assert at > 10


def test_a_group_waits_no_longer_than_told_for_the_others_and_goes_on_no_more(make):
    optimizer, net, _ = make(groups=2)
    step(optimizer, net)
    with pytest.raises(RequestTimeoutError):
        optimizer.finish(timeout_s=0.05)
    with pytest.raises(ConfigError, match="finish"):
        step(optimizer, net)
    optimizer.close()


def test_a_constructor_that_fails_late_leaves_no_hooks(worlds, monkeypatch):
    def fail(*_, **__) -> None:
        raise ConnectionError

    monkeypatch.setattr(hybrid, "GroupExchange", fail)
    x = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ConnectionError):
        HybridSGD(torch.optim.SGD([x]), ModelBox(), "run", world=worlds(1, 1)[0])
    assert not x._post_accumulate_grad_hooks


@pytest.mark.parametrize(("nodes", "is_told"), [(1000, True), (5000, False)])
def test_a_member_connects_to_all_nodes_of_its_root(
    run_ranks, monkeypatch, nodes: int, is_told: bool
):
    box, asked = ModelBox(), []
    box.address = ",".join(f"tcp://node-{number}.example.org:30000" for number in range(nodes))
    monkeypatch.setattr(member.smbox, "connect", lambda address: asked.append(address) or box)

    def work(world: World) -> None:
        net = torch.nn.Linear(3, 1)
        own = box if world.is_group_root else None
        with HybridSGD(torch.optim.SGD(net.parameters()), own, "run", world=world) as optimizer:
            if is_told:
                optimizer.center_into(net)
            elif own is None:
                with pytest.raises(ConfigError, match="give every rank a box"):
                    optimizer.center_into(net)

    run_ranks(2, work)
    assert asked == [box.address] * is_told
