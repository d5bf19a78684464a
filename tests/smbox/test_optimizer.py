from __future__ import annotations

import numpy as np
import pytest

import smbox
from smbox.errors import ConfigError, LayoutMismatchError, PeerLostError, RequestTimeoutError
from smbox.memory.kernels import OPTIMIZERS, OptimizerCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.solo import solo_box, solo_boxes

STRIPE = STRIPE_NBYTES // 4


@pytest.fixture
def region(box):
    return box.create("w", shape=STRIPE + 3)


def test_workers_share_the_state(solo, box, region):
    gradient = np.ones(STRIPE + 3, np.float32)
    mine = box.optimizer(region, "momentum", lr=1.0, momentum=0.5)
    with solo_box(solo) as other:
        same = other.optimizer(other.attach("w"), "momentum", lr=1.0, momentum=0.5)
        mine.step(gradient)
        same.step(gradient)
        assert list(same.states) == ["momentum"]
        assert same.states["momentum"].name == "w/momentum.momentum"
    assert (region.get() == -1 - 1.5).all()
    assert isinstance(mine, smbox.Optimizer)
    assert "momentum" in repr(mine)


@pytest.mark.parametrize("name", ["momentum", "nesterov"])
def test_the_momentum_is_nine_tenths_unless_another_is_given(box, region, name):
    given, other = {"momentum": 0.9}, box.create("v", shape=STRIPE + 3)
    gradient = np.ones(STRIPE + 3, np.float32)
    steps = box.optimizer(region, name, lr=1.0), box.optimizer(other, name, lr=1.0, **given)
    for each in (*steps, *steps):
        each.step(gradient)
    assert np.array_equal(region.get(), other.get())


def test_each_worker_may_free_the_state(box, region):
    first, second = (box.optimizer(region, "adam", lr=0.5) for _ in range(2))
    first.free()
    second.free()
    assert [info.name for info in box.regions()] == [region.name]


def test_defaults_are_torchs():
    torch = pytest.importorskip("torch")
    adam = torch.optim.Adam([torch.zeros(1)]).defaults
    adagrad = torch.optim.Adagrad([torch.zeros(1)]).defaults
    row = OPTIMIZERS[OptimizerCode.ADAGRAD]
    ours = [*OPTIMIZERS[OptimizerCode.ADAM].parameters.values()]
    assert ours == [None, *adam["betas"], adam["eps"]]
    assert row.parameters == {"lr": None, "eps": adagrad["eps"]}
    assert row.initial.items() <= adagrad.items()


def test_the_first_worker_decides_what_the_accumulator_begins_as(box, region):
    first = box.optimizer(region, "adagrad", lr=1.0, initial_accumulator_value=0.25)
    assert (first.states["squares"].get() == np.float32(0.25)).all()
    box.optimizer(region, "adagrad", lr=1.0, initial_accumulator_value=4.0)
    first.step(np.full(STRIPE + 3, 0.5, np.float32))
    expected = -np.float32(0.5) / (np.sqrt(np.float32(0.5)) + np.float32(1e-10))
    assert (region.get() == expected).all()  # without one it would be -1, for every gradient


def test_a_held_state_makes_the_step_wait_and_happen_once(box, region, held):
    optimizer = box.optimizer(region, "adagrad", lr=1.0)
    gradient = np.ones(STRIPE + 3, np.float32)
    with held(optimizer.states["squares"], 1):
        handle = optimizer.step_nb(gradient)
        with pytest.raises(RequestTimeoutError) as error:
            handle.wait(timeout_s=0.01)
    assert error.value.facts["ranges_done"] == [(0, STRIPE_NBYTES)]
    handle.wait()
    assert (optimizer.states["squares"].get() == 1).all()
    assert region.version == 2


@pytest.mark.parametrize("wrong", ["x", [1.0, 2.0]])
def test_settings_must_be_numbers(box, region, wrong):
    with pytest.raises(ConfigError, match="eps must be a number"):
        box.optimizer(region, "adagrad", lr=0.1, eps=wrong)
    optimizer = box.optimizer(region, "adagrad", lr=0.1)
    with pytest.raises(ConfigError, match="lr must be a number"):
        optimizer.step(np.ones(region.shape, np.float32), lr=wrong)


def test_regions_that_cannot_be_stepped(box, region):
    with pytest.raises(ConfigError, match="whole region"):
        box.optimizer(region[:5], "adam", lr=0.1)
    with pytest.raises(ConfigError, match="lr must be given"):
        box.optimizer(region, "adam")
    with pytest.raises(TypeError, match="steps a region, not str"):
        box.optimizer("w", "adam", lr=0.1)
    unlocked = box.create("h", shape=3, consistency="none")
    with pytest.raises(ConfigError, match="consistency 'stripe'"):
        box.optimizer(unlocked, "adam", lr=0.1)
    box.create("w/adam.mean", shape=3)
    with pytest.raises(LayoutMismatchError):
        box.optimizer(region, "adam", lr=0.1)


@pytest.mark.parametrize("wrong", [-1.0, np.inf, np.nan])
def test_an_accumulator_begins_finite_and_not_negative(box, region, wrong):
    with pytest.raises(ConfigError, match="finite and not negative") as caught:
        box.optimizer(region, "adagrad", lr=1.0, initial_accumulator_value=wrong)
    assert "initial_accumulator_value" in caught.value.facts
    assert [info.name for info in box.regions()] == [region.name]


def test_a_gradient_may_be_narrower_than_the_parameters(box):
    region = box.create("v", shape=3)
    optimizer = box.optimizer(region, "adagrad", lr=0.5)
    optimizer.step(np.ones(3, np.float16))
    assert region.get().tolist() == [-0.5] * 3
    with pytest.raises(LayoutMismatchError):
        optimizer.step(np.ones(3, np.float64))


def test_the_parameters_of_another_node_get_no_state_here(box):
    with solo_boxes() as opener, solo_box(opener) as other:
        theirs = other.create("w", shape=3)
        with pytest.raises(PeerLostError):
            box.optimizer(theirs, "adam", lr=0.1)
    assert box.regions() == []
