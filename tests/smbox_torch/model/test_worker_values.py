from __future__ import annotations

import copy

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, Dogwild, Downpour
from smbox_torch.model.flat import FlatParameters
from smbox_torch.model.worker_values import WorkerValues

torch.set_num_threads(1)


def network(seed: int = 1) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def wrapped(box: ModelBox, kind=EASGD, **settings):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, kind(optimizer, box, "run", workers=2, model=model, **settings)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.arange(8.0).view(4, 2)).square().sum().backward()
        optimizer.step()


def values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(x, other[name]) for name, x in one.items())


def floats(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x for name, x in found.items() if x.is_floating_point()}


@pytest.mark.parametrize("kind", [EASGD, Downpour])
def test_the_model_holds_the_center_until_train(kind):
    model, optimizer = wrapped(ModelBox(), kind)
    train(model, optimizer)
    own, center = values(model), network(2)
    optimizer.center_into(center)
    assert not same(floats(own), floats(values(center)))
    optimizer.eval()
    assert same(floats(values(model)), floats(values(center)))
    optimizer.eval()  # again: harmless
    optimizer.train()
    assert same(values(model), own)
    optimizer.train()
    train(model, optimizer)


def test_training_goes_on_as_if_nothing_had_been_evaluated():
    (one, with_eval), (other, without) = wrapped(ModelBox()), wrapped(ModelBox())
    for _ in range(4):
        train(one, with_eval)
        with_eval.eval()
        with_eval.train()
        train(other, without)
    assert same(values(one), values(other))


def test_what_was_evaluated_stays_as_others_go_on():
    box = ModelBox()
    (model, optimizer), (peer, others) = wrapped(box), wrapped(box)
    train(model, optimizer)
    optimizer.eval()
    shown = values(model)
    train(peer, others, 12)
    optimizer.eval()
    assert same(values(model), shown)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_or_an_exchange_on_the_center_is_refused(overlap: bool):
    model, optimizer = wrapped(ModelBox(), overlap=overlap)
    train(model, optimizer)
    optimizer.eval()
    before = values(model)
    with pytest.raises(ConfigError, match=r"train\(\)"):
        optimizer.step()
    with pytest.raises(ConfigError, match=r"train\(\)"):
        optimizer.exchange()
    assert same(values(model), before)
    assert optimizer.steps == 3


def test_a_state_dict_tells_the_own_values_wherever_they_are():
    model, optimizer = wrapped(ModelBox())
    train(model, optimizer)
    before = optimizer.state_dict()
    optimizer.eval()
    found = optimizer.state_dict()
    for key in ("parameters", "buffers"):
        assert same(found[key], before[key])
    optimizer.load_state_dict(found)  # leaves the center, and the mode
    assert torch.equal(optimizer.flat.values()["float32"], before["parameters"]["float32"])
    train(model, optimizer)


def test_an_overlapped_exchange_arrives_at_the_own_values():
    (one, with_eval), (other, without) = (
        wrapped(ModelBox(), period=1, overlap=True) for _ in range(2)
    )
    with with_eval, without:
        for _ in range(4):
            train(one, with_eval, 1)
            with_eval.eval()
            with_eval.train()
            train(other, without, 1)
    assert same(values(one), values(other))


@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
def test_a_center_that_cannot_be_fetched_leaves_the_model(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
):
    model, optimizer = wrapped(ModelBox())
    train(model, optimizer)
    before = values(model)

    def fail() -> None:
        raise error

    monkeypatch.setattr(optimizer.buffers, "values", fail)  # the second one to be fetched
    with pytest.raises(error):
        optimizer.eval()
    assert same(values(model), before)
    train(model, optimizer)


def test_a_train_that_is_interrupted_can_be_repeated(monkeypatch: pytest.MonkeyPatch):
    model, optimizer = wrapped(ModelBox())
    train(model, optimizer)
    before = values(model)
    optimizer.eval()

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(optimizer.buffers.flat, "set", interrupt)  # the second one to be set
        with pytest.raises(KeyboardInterrupt):
            optimizer.train()
    with pytest.raises(ConfigError, match=r"train\(\)"):
        optimizer.step()
    optimizer.train()
    assert same(values(model), before)


def test_a_state_of_the_same_wrapper_is_no_checkpoint():
    """accelerate loads the state of what it prepares; the center stays restorable."""
    _, saved = wrapped(ModelBox())
    train(_, saved)
    checkpoint = saved.state_dict()
    box = ModelBox()
    _, optimizer = wrapped(box)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _, other = wrapped(box)
    other.load_state_dict(checkpoint)
    assert torch.equal(other.center.values()["float32"], checkpoint["centers"][0]["float32"])


def test_a_streaming_worker_keeps_its_model():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Dogwild(
        optimizer, ModelBox(), "run", is_master=True, pause_s=None, workers=1
    ) as dogwild:
        train(model, dogwild)
        before = values(model)
        dogwild.eval()
        assert same(values(model), before)
        train(model, dogwild)


def test_kept_values_are_copies_both_ways():
    weight = torch.nn.Parameter(torch.ones(3))
    own = WorkerValues([FlatParameters([weight])])
    own.replace(weight.data.zero_)
    own.values()[0]["float32"].fill_(7.0)
    own.restore()
    assert weight.tolist() == [1.0] * 3
    assert not own.are_saved
