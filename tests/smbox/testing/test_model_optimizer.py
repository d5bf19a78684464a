from __future__ import annotations

import numpy as np
import pytest

import smbox
from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox

pytestmark = pytest.mark.usefixtures("quick_starts")

STEPS = [np.array([1, -2, 0.5], np.float32), np.array([0.25, 3, -1], np.float32)]


def stepped(box, name: str, **parameters: float):
    region = box.create("w", shape=3, init=np.ones(3, np.float32))
    optimizer = box.optimizer(region, name, lr=0.5, **parameters)
    before = region.version
    for gradient in STEPS:
        optimizer.step(gradient)
    optimizer.step(STEPS[0], lr=0.25)
    states = {state: kept.get().tolist() for state, kept in optimizer.states.items()}
    return region.get().tolist(), states, region.version - before


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adagrad", "adam"])
def test_it_steps_as_the_memory_does(name: str):
    with smbox.local(memory="64MiB") as box:
        found = stepped(box, name)
    assert stepped(ModelBox(), name) == found


def test_workers_share_its_state():
    box = ModelBox()
    region = box.create("w", shape=3, init=np.ones(3, np.float32))
    for gradient, client in zip(STEPS, "ab", strict=True):
        box.client(client).optimizer(region, "adagrad", lr=0.5).step(gradient)
    assert box.order("w", "step") == ["a", "b"]
    squares = box.attach("w/adagrad.squares").get()
    np.testing.assert_array_equal(squares, STEPS[0] ** 2 + STEPS[1] ** 2)


def test_it_takes_the_same_parameters():
    region = ModelBox().create("w", shape=3)
    with pytest.raises(ConfigError):
        ModelBox(store=None).optimizer(region, "adagrad", momentum=0.5)
