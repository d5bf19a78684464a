"""Models that are changed between wrapping and the first step; states of plain optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import (
    EASGD,
    SSP,
    Hogwild,
    HogwildPP,
    HybridSGD,
    ParameterServer,
    RingAllReduce,
    SyncGroup,
)
from smbox_torch.world import World

torch.set_num_threads(1)
ALONE = {"rank": 0}


def network() -> torch.nn.Sequential:
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def made(kind: type, model: torch.nn.Module, box: ModelBox):
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    more = ALONE if kind in {SSP, ParameterServer} else {}
    return kind(sgd, box, "run", workers=1, **more)


def by_load_state_dict(model: torch.nn.Module) -> None:
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})


def by_data(model: torch.nn.Module) -> None:
    next(model.parameters()).data.view(-1)[0] += 1.0


def train(model: torch.nn.Module, opt: torch.optim.Optimizer) -> None:
    opt.zero_grad()
    model(torch.ones(4, 2) * torch.arange(4.0)[:, None]).square().sum().backward()
    opt.step()


def weights(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


@pytest.mark.parametrize("change", [by_load_state_dict, by_data])
def test_a_model_that_is_changed_after_wrapping_is_refused(
    centered: type, change: Callable[[torch.nn.Module], None]
):
    box, model = ModelBox(), network()
    opt = made(centered, model, box)
    center = box.attach("run.float32").get()
    change(model)
    changed, began = weights(model), len(box.log)
    for _ in range(2):  # not only once
        with pytest.raises(ConfigError, match="load the model before"):
            train(model, opt)
    np.testing.assert_array_equal(weights(model), changed)
    np.testing.assert_array_equal(box.attach("run.float32").get(), center)
    ops = [entry.op for entry in box.log[began:] if entry.region == "run.float32"]
    assert ops == ["get"]  # the test's own
    opt.center_into(model)
    train(model, opt)
    opt.close()


def test_the_center_in_another_model_does_not_hide_a_change():
    model = network()
    opt = made(EASGD, model, ModelBox())
    by_data(model)
    opt.center_into(network())
    with pytest.raises(ConfigError, match="load the model before"):
        train(model, opt)


def test_the_center_in_the_own_model_is_no_change_though_others_have_moved_it():
    box, model = ModelBox(), network()
    opt = made(EASGD, model, box)
    region = box.attach("run.float32")
    region.accumulate(np.ones(region.shape, np.float32))
    opt.center_into(model)
    train(model, opt)
    assert opt.steps == 1


def test_the_center_in_the_own_model_does_not_forbid_later_changes():
    model = network()
    opt = made(EASGD, model, ModelBox())
    train(model, opt)
    opt.center_into(model)
    by_data(model)
    train(model, opt)
    assert opt.steps == 2


@pytest.mark.parametrize("kind", [SyncGroup, HybridSGD, RingAllReduce])
def test_classes_that_average_gradients_refuse_it_too(kind: type):
    model, world = network(), World(0, 0, run_id="loading")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    args = (ModelBox(), "run") if kind is HybridSGD else ()
    with kind(sgd, *args, world=world) as opt:
        by_load_state_dict(model)
        with pytest.raises(ConfigError, match="load the model before"):
            opt.step()
        opt.load_state_dict(opt.state_dict())
        train(model, opt)


def test_what_the_model_holds_already_is_no_change():
    model = network()
    opt = made(EASGD, model, ModelBox())
    model.load_state_dict(model.state_dict())
    model.to("cpu").float()
    model(torch.ones(4, 2))  # moves the statistics of the batch norm
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(2):
        opt.zero_grad()
        scaler.scale(model(torch.randn(4, 2)).square().sum()).backward()
        scaler.step(opt)
        scaler.update()
        scheduler.step()
    assert opt.steps == 2


def test_an_exchange_that_is_asked_for_is_refused_as_well():
    model = network()
    opt = made(EASGD, model, ModelBox())
    by_data(model)
    with pytest.raises(ConfigError, match="load the model before"):
        opt.exchange()


def adam(model: torch.nn.Module, lr: float = 0.1) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=lr)


def test_the_state_of_a_plain_optimizer_sets_the_one_inside():
    plain_model, model, box = network(), network(), ModelBox()
    plain = adam(plain_model, lr=0.03)
    train(plain_model, plain)
    opt = EASGD(adam(model), box, "run", workers=1)
    before = weights(model)
    opt.load_state_dict(plain.state_dict())
    assert opt.param_groups[0]["lr"] == 0.03
    assert opt.state[next(model.parameters())]["step"] == 1
    assert (opt.steps, weights(model).tolist()) == (0, before.tolist())
    train(model, opt)
    with pytest.raises(KeyError):
        adam(network()).load_state_dict(opt.state_dict())
    adam(network()).load_state_dict(opt.state_dict()["inner"])  # as the docs say
    opt.finish()
    adam(network()).load_state_dict(opt.inner.state_dict())
    weight = weights(model)
    train(model, opt.inner)  # as a library does that got it back
    assert opt.state[next(model.parameters())]["step"] == 3
    assert weights(model).tolist() != weight.tolist()


def test_a_group_takes_the_state_of_a_plain_optimizer(run_ranks):
    plain_model, box = network(), ModelBox()
    plain = adam(plain_model, lr=0.03)
    train(plain_model, plain)

    def work(world: World) -> tuple[float, float]:
        model = network()
        with HybridSGD(adam(model), box, "run", world=world) as opt:
            opt.load_state_dict(copy.deepcopy(plain.state_dict()))
            train(model, opt)
            return opt.param_groups[0]["lr"], float(opt.state[model[0].weight]["step"])

    assert run_ranks(2, work) == [(0.03, 2.0)] * 2


def test_a_plain_state_does_not_hide_a_model_that_was_loaded():
    model = network()
    opt = EASGD(adam(model), ModelBox(), "run", workers=1)
    by_load_state_dict(model)
    opt.load_state_dict(adam(network()).state_dict())
    with pytest.raises(ConfigError, match="load the model before"):
        train(model, opt)


def test_states_that_do_not_fit_change_nothing():
    model = network()
    opt = EASGD(adam(model), ModelBox(), "run", workers=1)
    groups = [{"params": [p]} for p in network().parameters()]
    for state, cure in (
        (torch.optim.Adam(groups).state_dict(), "groups as they were"),
        ({"state": {}, "param_groups": [{}]}, "groups as they were"),
        ({**opt.state_dict(), "algorithm": "Downpour"}, r"state\['inner'\]"),
        ({"model": {}}, "not an entire checkpoint"),
    ):
        with pytest.raises(ConfigError, match=cure):
            opt.load_state_dict(state)
    assert opt.param_groups[0]["lr"] == 0.1
    with pytest.raises(ConfigError, match="not an entire checkpoint"):
        SyncGroup(adam(network()), world=World(0, 0, run_id="x")).load_state_dict({"model": {}})


KEYS = [
    "algorithm",
    "rank",
    "steps",
    "shared",
    "inner",
    "parameters",
    "buffers",
    "counts",
    "centers",
    "extra",
    "origin",
    "shapes",
    "order",
]


def test_states_have_one_form(centered: type):
    opt = made(centered, network(), ModelBox())
    assert list(opt.state_dict()) == KEYS
    assert (opt.steps, opt.workers, opt.rank) == (0, 1, 0)
    check_that_a_part_is_refused(opt)
    opt.close()


def check_that_a_part_is_refused(opt):
    for key in KEYS[1:]:
        state = opt.state_dict()
        del state[key]
        with pytest.raises(ConfigError, match=key):
            opt.load_state_dict(state)


@pytest.mark.parametrize("kind", [SyncGroup, HybridSGD, RingAllReduce, Hogwild, HogwildPP])
def test_states_have_that_form_without_a_center_too(kind: type, open_box, worlds):
    args = () if kind in {SyncGroup, RingAllReduce} else (open_box(), "run")
    more = {"clusters": 1} if kind is HogwildPP else {}
    more |= {} if kind is Hogwild else {"world": worlds(1, 1)[0]}
    model = network()
    with kind(torch.optim.SGD(model.parameters(), lr=0.1), *args, **more) as opt:
        assert list(opt.state_dict()) == KEYS
        assert (opt.steps, opt.workers, opt.rank) == (0, 1, 0)
        train(model, opt)
        state = copy.deepcopy(opt.state_dict())
        assert state["steps"] == 1
        opt.load_state_dict(state)
        assert opt.steps == 1
        check_that_a_part_is_refused(opt)


def test_a_table_that_changes_in_forward_is_brought_below_its_norm_before_wrapping():
    def train_table(*, is_short: bool) -> torch.optim.Optimizer:
        table = torch.nn.Embedding(50, 8, max_norm=0.5)
        if is_short:
            table.weight.data.renorm_(2, 0, 0.99 * 0.5)
        sgd = torch.optim.SGD(table.parameters(), lr=0.1)
        opt = EASGD(sgd, ModelBox(), "run", workers=1)
        for _ in range(3):
            opt.zero_grad()
            table(torch.arange(50)).square().sum().backward()
            opt.step()
        return opt

    with pytest.raises(ConfigError, match="max_norm"):
        train_table(is_short=False)
    assert train_table(is_short=True).steps == 3
