"""``torch.set_default_device`` does not change where the classes keep their own arrays.

Tensors on the device ``meta`` have no values, so an array there would fail at its first use.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smbox
from smbox_torch import (
    EASGD,
    SSP,
    Dogwild,
    Downpour,
    Hogwild,
    HybridSGD,
    Publisher,
    RingAllReduce,
    Subscriber,
    SyncGroup,
)
from smbox_torch.world import World

pytestmark = pytest.mark.shares

Wrap = Callable[[torch.optim.Optimizer, torch.nn.Module], Any]


@pytest.fixture(scope="module")
def box() -> Iterator[smbox.Box]:
    with smbox.local(memory="256MiB") as made:
        yield made


def network() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8))


def trained(wrap: Wrap, device: str, model: torch.nn.Module) -> list[torch.Tensor]:
    """Train with a default device; return all values of the model."""
    xs = torch.linspace(-1.0, 1.0, 96).reshape(16, 6).to(next(model.parameters()).dtype)
    with torch.device(device):
        opt = wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for _ in range(12):
            opt.zero_grad()
            model(xs).square().mean().backward()
            opt.step()
        state = opt.state_dict()
        opt.load_state_dict(state)
        if hasattr(opt, "center_into"):
            opt.center_into(model)
        opt.close()
    assert not any(value.is_meta for value in tensors(state))
    return [value.detach().clone() for value in model.state_dict().values()]


def tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors(value)


def check(wrap: Wrap, dtype: torch.dtype = torch.float32) -> None:
    found, wanted = (trained(wrap, device, network().to(dtype)) for device in ("meta", "cpu"))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_classes_with_a_center(centered: type, box: smbox.Box, alone_in: Callable[..., Wrap]):
    check(alone_in(box, centered))


@pytest.mark.parametrize("kind", [EASGD, Downpour, SSP])
def test_a_narrow_wire_and_a_master(kind: type, box: smbox.Box, alone_in: Callable[..., Wrap]):
    check(alone_in(box, kind, wire="bfloat16"))
    check(alone_in(box, kind), torch.bfloat16)


@pytest.mark.parametrize("state", ["private", "shared"])
def test_hogwild(state: str, box: smbox.Box):
    check(lambda sgd, model: Hogwild(sgd, box, uuid.uuid4().hex, model=model, state=state))


def test_dogwild(box: smbox.Box, alone_in: Callable[..., Wrap]):
    found = trained(alone_in(box, Dogwild, rank=0), "meta", network())
    assert all(value.isfinite().all() for value in found)  # its steps come as they come


def test_classes_that_average(box: smbox.Box, worlds: Callable[..., list[World]]):
    check(lambda sgd, model: SyncGroup(sgd, model, world=worlds(1, 1)[0]))
    check(
        lambda sgd, model: RingAllReduce(
            sgd, model, world=worlds(1, 1)[0], exchange=lambda own: [own]
        )
    )
    check(
        lambda sgd, model: HybridSGD(
            sgd, box, uuid.uuid4().hex, model=model, world=worlds(1, 1)[0], period=3
        )
    )


def test_ranks_of_a_host(run_ranks: Callable[..., list[Any]]):
    def train(device: str) -> list[Any]:
        def rank(world: World) -> list[torch.Tensor]:
            return trained(
                lambda sgd, model: SyncGroup(sgd, model, world=world),
                device,
                models[world.rank],
            )

        models = [network(), network()]
        return run_ranks(2, rank)

    for found, wanted in zip(train("meta"), train("cpu"), strict=True):
        torch.testing.assert_close(found, wanted)


def test_publishing(box: smbox.Box):
    model, other, name = network(), network(), uuid.uuid4().hex
    with torch.device("meta"), Publisher(box, name, model, dtype=torch.bfloat16) as publisher:
        version = publisher.publish()
        subscriber = Subscriber(box, name)
        assert subscriber.pull(into=other, timeout_s=30) == version
    assert not any(value.is_meta for value in subscriber.state.values())
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.bfloat16().float(), two)
