"""Models in channels_last with a fused optimizer, which ignores strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, Dogwild, Downpour, ParameterServer
from smbox_torch.model.strides import match_gradients, match_state

torch.set_num_threads(1)
FUSED = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
}


@pytest.fixture(params=FUSED)
def fused(request: pytest.FixtureRequest) -> Callable[..., torch.optim.Optimizer]:
    return FUSED[request.param]


def network() -> torch.nn.Conv2d:
    torch.manual_seed(2)
    return torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Train; the gradients are set to zero in place, so they keep their memory."""
    for step in steps:
        optimizer.zero_grad(set_to_none=False)
        images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(step))
        model(images).square().mean().backward()
        optimizer.step()


def trained_plainly(fused: Callable[..., torch.optim.Optimizer], steps: int):
    model = network()
    optimizer = fused(model.parameters())
    train(model, optimizer, range(steps))
    return model, optimizer


def assert_equal_values(model: torch.nn.Module, other: torch.nn.Module) -> None:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("kind", [Downpour, Dogwild, ParameterServer])
@pytest.mark.filterwarnings("ignore:grad and param do not obey")  # between wrapping and step
def test_an_optimizer_that_has_stepped_before_continues_like_a_plain_one(kind, fused):
    model, optimizer = trained_plainly(fused, 4)
    with kind(optimizer, ModelBox(), "run", workers=1, rank=0) as wrapped:
        train(model, wrapped, range(4, 8))
    assert_equal_values(model, trained_plainly(fused, 8)[0])


@pytest.mark.parametrize("steps", [0, 1], ids=["unused", "used"])
@pytest.mark.parametrize("by_inner", [False, True])
def test_a_state_that_is_loaded_continues_like_a_plain_one(by_inner: bool, steps: int, fused):
    before, saved = trained_plainly(fused, 4)
    model = network()
    model.load_state_dict(before.state_dict())
    optimizer = fused(model.parameters())
    with Downpour(optimizer, ModelBox(), "run", workers=1, rank=0) as wrapped:
        train(model, wrapped, range(steps))
        if steps:
            model.load_state_dict(before.state_dict())
        (optimizer if by_inner else wrapped).load_state_dict(saved.state_dict())
        train(model, wrapped, range(4, 8))
    assert_equal_values(model, trained_plainly(fused, 8)[0])


def test_assigned_gradients_of_other_strides_step_like_those_of_a_plain_one(fused):
    plain, model = network(), network()
    wrapped = EASGD(fused(model.parameters()), ModelBox(), "run", workers=1, period=9)
    for one, optimizer in ((plain, fused(plain.parameters())), (model, wrapped)):
        for step in range(3):
            images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(step))
            loss = one(images.to(memory_format=torch.channels_last)).square().mean()
            gradients = torch.autograd.grad(loss, [*one.parameters()])
            one.weight.grad, one.bias.grad = gradients
            optimizer.step()
    assert_equal_values(model, plain)
    wrapped.close(exchange=False)


def test_equal_strides_other_shapes_and_sparse_gradients_stay():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    adagrad = torch.optim.Adagrad(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    weight = embedding.weight
    before = weight.grad, *adagrad.state[weight].values()
    match_state(adagrad)
    adagrad.param_groups[0]["fused"] = True
    match_gradients(adagrad)
    after = weight.grad, *adagrad.state[weight].values()
    assert all(a is b for a, b in zip(after, before, strict=True))


def test_state_keeps_its_dtype():
    weight = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.bfloat16))
    sgd = torch.optim.SGD([weight], lr=0.1)
    thirds = torch.full((3, 2), 1 / 3).t()
    sgd.state[weight]["momentum_buffer"] = thirds
    match_state(sgd)
    found = sgd.state[weight]["momentum_buffer"]
    assert found.stride() == weight.stride()
    assert torch.equal(found, thirds)
