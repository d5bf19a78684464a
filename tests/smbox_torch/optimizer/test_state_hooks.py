"""Hooks of saving, loading and stepping, of every wrapper."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import smbox_torch
from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import EAMSGD, ServerDownpour
from smbox_torch.optimizer.wrapped import WrappedOptimizer

pytestmark = pytest.mark.shares

JOINING = (
    *("EASGD", "EAMSGD", "SEASGD", "SyncEASGD", "Downpour", "ADownpour", "MVADownpour"),
    *("MDownpour", "ServerDownpour", "SSP", "ParameterServer", "Dogwild"),
)
OPTIONS = {
    **{name: {"workers": 1} for name in JOINING},
    "Hogwild": {},
    "HogwildPP": {"clusters": 1},
    "HybridSGD": {},
    "SyncGroup": None,
    "RingAllReduce": None,
}
WITH_WORLD = ("HogwildPP", "HybridSGD", "SyncGroup", "RingAllReduce")


@pytest.fixture(params=OPTIONS)
def wrapper(request, node, run, worlds):
    kind, options = getattr(smbox_torch, request.param), OPTIONS[request.param]
    inner = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    (alone,) = worlds(1, 1)
    world = {"world": alone} if request.param in WITH_WORLD else {}
    places = (node, run) if options is not None else ()
    with kind(inner, *places, **(options or {}), **world) as optimizer:
        yield optimizer


def test_all_wrappers_are_tried():
    known = {getattr(smbox_torch, name) for name in smbox_torch.__all__}
    kinds = {k for k in known if isinstance(k, type) and issubclass(k, WrappedOptimizer)}
    assert {kind.__name__ for kind in kinds} - {"BoxOptimizer"} == OPTIONS.keys()


def test_hooks_are_called_once_each_and_what_they_return_counts(wrapper):
    calls = []

    def told(name):
        return lambda optimizer, *_: calls.append((name, optimizer))

    wrapper.register_state_dict_pre_hook(told("before saving"))
    wrapper.register_state_dict_post_hook(told("saved"))
    wrapper.register_state_dict_post_hook(lambda _, state: state | {"mark": 7})
    wrapper.register_load_state_dict_pre_hook(told("before loading"))
    wrapper.register_load_state_dict_pre_hook(
        lambda _, state: calls.append(state.pop("mark")) or state
    )
    wrapper.register_load_state_dict_post_hook(told("loaded"))
    state = wrapper.state_dict()
    assert state["mark"] == 7
    wrapper.load_state_dict(state)
    assert state["mark"] == 7
    saved, loaded = [("before saving", wrapper), ("saved", wrapper)], ("loaded", wrapper)
    assert calls == [*saved, ("before loading", wrapper), 7, loaded]


def test_a_load_that_fails_leaves_the_hooks_in_order(wrapper):
    calls = []
    wrapper.register_load_state_dict_post_hook(calls.append)
    state = wrapper.state_dict()
    with pytest.raises(ConfigError):
        wrapper.load_state_dict({"algorithm": "none of these"})
    assert calls == []
    wrapper.load_state_dict(state)
    assert calls == [wrapper]


def test_a_step_hook_of_the_inner_optimizer_counts_or_is_refused(wrapper):
    (weight, bias) = wrapper.param_groups[0]["params"]
    before = weight.detach().clone(), bias.detach().clone()

    def clear(optimizer, *_):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.zero_()

    wrapper.inner.register_step_pre_hook(clear)
    (weight.sum() + bias.sum()).backward()
    if isinstance(wrapper, EAMSGD | ServerDownpour):
        with pytest.raises(ConfigError, match="register them with the"):
            wrapper.step()
    else:
        wrapper.step()
    assert torch.equal(weight, before[0])
    assert torch.equal(bias, before[1])


def test_a_global_step_hook_is_called_once_for_the_wrapper(wrapper):
    """And for the inner optimizer, whose step is a step of an optimizer, too."""
    calls = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: calls.append(optimizer))
    for parameter in wrapper.param_groups[0]["params"]:
        parameter.sum().backward()
    wrapper.step()
    hook.remove()
    assert calls.count(wrapper) == 1
    assert calls.count(wrapper.inner) == len(calls) - 1


@pytest.mark.parametrize("kind", [EAMSGD, ServerDownpour])
def test_a_step_hook_that_would_be_ignored_is_refused_at_once(kind):
    box, sgd = ModelBox(), torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    sgd.register_step_post_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="register them with the"):
        kind(sgd, box, "run", workers=1)
    assert box.regions() == []
