"""States of the wrapper itself, and states that are loaded while it holds the center."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD

torch.set_num_threads(1)


def wrapped(model: torch.nn.Module, box: ModelBox) -> EASGD:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return EASGD(sgd, box, "run", workers=1, period=4)


def step(model: torch.nn.Module, opt: EASGD) -> None:
    opt.zero_grad()
    model(torch.ones(4, 2)).square().sum().backward()
    opt.step()


def weights(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def test_a_state_of_the_wrapper_itself_does_not_change_the_center():
    """As accelerate loads one; other workers may have moved the center since."""
    box, model = ModelBox(), torch.nn.Linear(2, 3)
    opt = wrapped(model, box)
    state = opt.state_dict()
    region = box.attach("run.float32")
    region.accumulate(np.ones(region.shape, np.float32))
    center = region.get()
    opt.load_state_dict(state)
    np.testing.assert_array_equal(region.get(), center)


def test_a_state_that_is_loaded_in_an_evaluation_ends_it():
    box, model = ModelBox(), torch.nn.Linear(2, 3)
    opt = wrapped(model, box)
    step(model, opt)
    own, state = weights(model), copy.deepcopy(opt.state_dict())
    step(model, opt)
    opt.eval()
    opt.load_state_dict(state)
    opt.train()
    np.testing.assert_array_equal(weights(model), own)
    step(model, opt)


@pytest.mark.parametrize("key", ["state", "param_groups"])
def test_an_incomplete_state_of_the_inner_optimizer_changes_nothing(key: str):
    model = torch.nn.Linear(2, 3)
    opt = wrapped(model, ModelBox())
    step(model, opt)
    state, before = opt.state_dict(), weights(model)
    del state["inner"][key]
    state["parameters"]["float32"] += 1.0
    with pytest.raises(ConfigError, match=key):
        opt.load_state_dict(state)
    np.testing.assert_array_equal(weights(model), before)
    assert opt.steps == 1
