"""``center_into``: which tensors of which model get what the workers share."""

from __future__ import annotations

import copy

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.optimizer.wrapper import BoxOptimizer

torch.set_num_threads(1)


class Plain(BoxOptimizer):
    """Steps, and exchanges nothing."""

    def _advance(self) -> None:
        with self._exchanging(8):
            self._local_step()


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def made(box: ModelBox | None = None, **settings) -> tuple[torch.nn.Module, Plain]:
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, Plain(inner, box or ModelBox(), "run", **({"workers": 1} | settings))


def train(model: torch.nn.Module, opt: torch.optim.Optimizer, steps: int = 1) -> None:
    for t in range(steps):
        opt.zero_grad()
        model(torch.ones(4, 2) * torch.arange(4.0)[:, None] * (t + 1)).square().sum().backward()
        opt.step()


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_center_fills_a_model_with_its_batch_norm():
    model, opt = made()
    center = opt.center.regions[0].get()
    train(model, opt)
    twin = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    opt.center_into(twin)
    assert weights(twin).tolist() == center.tolist()
    opt.center_into(model)
    assert weights(model).tolist() == center.tolist()


def test_another_model_cannot_be_filled():
    _, opt = made()
    other = torch.nn.Linear(2, 3)
    before = weights(other)
    with pytest.raises(ConfigError, match="do not match"):
        opt.center_into(other)
    assert torch.equal(weights(other), before)


class Tied(torch.nn.Module):
    """Two layers with one weight, or with two."""

    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight


def test_a_model_without_the_ties_of_the_own_one_is_not_filled_in_part():
    model, other = Tied(is_tied=True), Tied(is_tied=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = Plain(sgd, ModelBox(), "run", model=model, workers=1)
    before = weights(other)
    with pytest.raises(ConfigError, match=r"head\.weight"):
        opt.center_into(other)
    assert torch.equal(weights(other), before)
    twin = Tied(is_tied=True)
    opt.center_into(twin)
    assert torch.equal(twin.head.weight, model.embedding.weight)


def two_alike(*, named: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Two layers of equal shapes, in groups in the other order."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    layers = [
        [(n, p) if named else p for n, p in model.named_parameters() if n.startswith(layer)]
        for layer in ("1", "0")
    ]
    return model, torch.optim.SGD([{"params": layer} for layer in layers], lr=0.1)


@pytest.mark.parametrize(("named", "given"), [(True, False), (False, True)])
def test_parameters_of_another_model_are_found_by_name(named: bool, given: bool):
    model, inner = two_alike(named=named)
    opt = Plain(inner, ModelBox(), "run", workers=1, model=model if given else None)
    twin = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    opt.center_into(twin)
    assert torch.equal(weights(twin), weights(model))


def test_an_order_that_cannot_be_known_is_not_guessed():
    model, inner = two_alike(named=False)
    opt = Plain(inner, ModelBox(), "run", workers=1)
    twin, own = torch.nn.Sequential(*map(copy.deepcopy, model)), weights(model)
    with pytest.raises(ConfigError, match="several groups"):
        opt.center_into(twin)
    opt.center_into(model)
    assert torch.equal(weights(model), own)


def test_statistics_go_into_a_model_whatever_it_is_wrapped_in():
    model = torch.nn.ModuleDict({"module": network()})
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = Plain(sgd, ModelBox(), "run", model=model, workers=1)
    with torch.no_grad():
        opt.buffers.put({"float32": torch.arange(6.0)})
    plain = network()
    opt.center_into(plain)
    assert plain[1].running_mean.tolist() == [0.0, 1.0, 2.0]


def test_a_model_that_shares_a_buffer_is_still_another_model():
    model, other = network(), network()
    other[1].running_var = model[1].running_var
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = Plain(sgd, ModelBox(), "run", model=model, workers=1)
    with torch.no_grad():
        opt.buffers.put({"float32": torch.arange(6.0)})
    opt.center_into(other)
    assert other[1].running_mean.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("wraps_own", [True, False])
def test_the_center_fills_compiled_models_both_ways_round(wraps_own: bool):
    model, inner = two_alike(named=False)
    compiled = torch.compile(model, backend="eager")
    opt = Plain(inner, ModelBox(), "run", workers=1, model=compiled if wraps_own else model)
    twin = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    target = twin if wraps_own else torch.compile(twin, backend="eager")
    opt.center_into(target)
    assert torch.equal(weights(twin), weights(model))
    twin[1] = torch.compile(twin[1], backend="eager")  # nested
    with torch.no_grad():
        twin[0].weight.zero_()
    opt.center_into(target)
    assert torch.equal(weights(twin), weights(model))


def test_counts_are_the_workers_own_and_reach_other_models():
    box = ModelBox()
    workers = []
    for steps in (2, 3):
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = Plain(sgd, box, "run", workers=2, model=model)
        train(model, opt, steps)
        workers.append((model, opt))
    for (model, opt), steps in zip(workers, (2, 3), strict=True):
        twin = torch.nn.DataParallel(network())
        opt.center_into(twin)
        assert twin.module[1].num_batches_tracked == steps
        opt.center_into(model)
        assert model[1].num_batches_tracked == steps
